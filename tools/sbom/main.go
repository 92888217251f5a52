// SPDX-License-Identifier: Apache-2.0

// Sbom writes a software bill of materials in CycloneDX's JSON: Go programs,
// the modules and the Go release that they were built from, and the Debian
// packages beside them. The same files give the same bytes.
//
//	sbom -name NAME -version VERSION -time TIME [-packages STATUS] PROGRAM...
package main

import (
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	name := flag.String("name", "", "the `name` of what is described")
	version := flag.String("version", "", "its `version`")
	made := flag.String("time", "", "when its source was committed, as RFC 3339 has it")
	packages := flag.String("packages", "", "a `file` with Debian packages, as /var/lib/dpkg/status has them")
	flag.Parse()
	if *name == "" || *version == "" || flag.NArg() == 0 {
		log.Fatal("usage: sbom -name NAME -version VERSION -time TIME [-packages STATUS] PROGRAM...")
	}
	b := newBill(*name, *version, *made)
	for _, file := range flag.Args() {
		if err := b.addProgram(file); err != nil {
			log.Fatal(err)
		}
	}
	if *packages != "" {
		if err := b.addPackages(*packages); err != nil {
			log.Fatal(err)
		}
	}
	if err := b.write(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// bill is what has been found so far, by the references of the components.
type bill struct {
	of         cdx.Component
	made       string
	components map[string]cdx.Component
	needs      map[string][]string
}

func newBill(name, version, made string) *bill {
	of := cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version}
	return &bill{of: of, made: made, components: map[string]cdx.Component{}, needs: map[string][]string{}}
}

// add adds a component that another one needs.
func (b *bill) add(needer string, c cdx.Component) {
	b.components[c.BOMRef] = c
	b.needs[needer] = append(b.needs[needer], c.BOMRef)
}

// addProgram adds a Go program and what it was built from.
func (b *bill) addProgram(file string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	program := cdx.Component{
		BOMRef: "program:" + filepath.Base(file), Type: cdx.ComponentTypeApplication, Name: filepath.Base(file), Version: b.of.Version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	b.add(b.of.BOMRef, program)
	b.add(program.BOMRef, module("std", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		if m.Replace != nil { // by a folder of this repository
			continue
		}
		b.add(program.BOMRef, module(m.Path, m.Version))
	}
	return nil
}

func module(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
}

// addPackages adds the Debian packages that a file of dpkg's lists.
func (b *bill) addPackages(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := paragraphs(f)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p["Package"] == "" || p["Version"] == "" || p["Architecture"] == "" {
			return fmt.Errorf("%s: a package without a name, a version or an architecture: %v", file, p)
		}
		url := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p["Package"], escape(p["Version"]), p["Architecture"])
		b.add(b.of.BOMRef, cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: p["Package"], Version: p["Version"], PackageURL: url})
	}
	return nil
}

// escape escapes what versions of Debian have and package URLs may not.
func escape(version string) string {
	return strings.NewReplacer("+", "%2B", ":", "%3A").Replace(version)
}

// paragraphs returns the one-line fields of each paragraph of a control file.
func paragraphs(r io.Reader) (all []map[string]string, err error) {
	var p map[string]string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if strings.TrimSpace(line) == "" {
			p = nil
			continue
		}
		if p == nil {
			p = map[string]string{}
			all = append(all, p)
		}
		if name, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' {
			p[name] = value
		}
	}
	return all, lines.Err()
}

// write writes the bill, its parts in order of their references.
func (b *bill) write(w io.Writer) error {
	var components []cdx.Component
	for _, c := range b.components {
		components = append(components, c)
	}
	slices.SortFunc(components, func(x, y cdx.Component) int { return strings.Compare(x.BOMRef, y.BOMRef) })
	var dependencies []cdx.Dependency
	for ref, needs := range b.needs {
		slices.Sort(needs)
		needs = slices.Compact(needs)
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &needs})
	}
	slices.SortFunc(dependencies, func(x, y cdx.Dependency) int { return strings.Compare(x.Ref, y.Ref) })
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: b.made, Component: &b.of}
	bom.Components, bom.Dependencies = &components, &dependencies
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}
