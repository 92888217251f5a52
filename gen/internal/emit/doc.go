package emit

import (
	"bytes"
	_ "embed"
	"go/format"
	"text/template"
)

//go:embed golang/doc.go.tmpl
var docTemplate string

func (p *pkg) docFile() ([]byte, error) {
	t, err := template.New("").Parse(docTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	headers := "infiniband/verbs.h, and what that uses of its neighbours"
	if p.verbs != nil {
		headers = "rdma/rdma_cma.h, rdma/rdma_verbs.h and rdma/rsocket.h"
	}
	if err := t.Execute(&b, map[string]string{
		"Marker": marker, "Name": p.name, "Prefix": p.prefix, "Headers": headers,
		"Soname": p.library.Soname, "Oldest": p.Snapshots[0].Version, "Version": p.API.Version, "Module": module,
	}); err != nil {
		return nil, err
	}
	return format.Source(b.Bytes())
}
