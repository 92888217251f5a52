// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"bytes"
	_ "embed"
	"go/format"
	"slices"
	"strings"
	"text/template"
)

//go:embed golang/doc.go.tmpl
var docTemplate string

//go:embed golang/elsewhere.go.tmpl
var docElsewhere string

func (p *pkg) docFile() ([]byte, error) {
	text := docTemplate
	if p.isElsewhere() {
		text = docElsewhere
	}
	t, err := template.New("").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, map[string]any{
		"Marker": marker, "License": license, "Name": p.name, "Prefix": strings.Join(p.library.Prefixes, " or "), "Headers": p.headers(),
		"Soname": p.library.Soname, "Program": p.library.Program, "Oldest": p.oldest(), "Version": p.API.Version, "Module": module, "Project": p.project(),
	}); err != nil {
		return nil, err
	}
	return format.Source(b.Bytes())
}

// headers returns the names of the headers that the package binds.
func (p *pkg) headers() []string {
	var names []string
	for _, h := range p.Known.Headers {
		if h.Package == p.name {
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	return names
}

// oldest returns the version of the oldest snapshot.
func (p *pkg) oldest() string {
	if len(p.Snapshots) == 0 {
		return p.API.Version
	}
	return p.Snapshots[0].Version
}
