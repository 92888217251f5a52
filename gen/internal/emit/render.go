// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"
)

func renderAll(all []*pkg) (map[*pkg]map[string][]byte, error) {
	rendered := map[*pkg]map[string][]byte{}
	for _, p := range all {
		files, err := p.render()
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", p.name, err)
		}
		rendered[p] = files
	}
	return rendered, nil
}

// render returns the package's files by name.
func (p *pkg) render() (map[string][]byte, error) {
	p.check()
	if len(p.findings) > 0 { // rendering would fail with less helpful errors
		return nil, p.failed()
	}
	files := map[string]func() ([]byte, error){
		"doc.go":         p.docFile,
		"enums.go":       p.goFile(p.enumsFile),
		"consts.go":      p.goFile(p.constsFile),
		"structs.go":     p.goFile(p.structsFile),
		"layout_test.go": p.goFile(p.layoutTestFile),
		"enums_test.go":  p.goFile(p.enumsTestFile),
		"unions_test.go": p.goFile(p.unionsTestFile),
		"stubs_cgo.go":   p.goFile(p.stubsFile),
		"stubs_other.go": p.goFile(p.platformFile),
		"stubs_test.go":  p.goFile(p.stubsTestFile),
		"abi.h":          p.abiHeader,
		"stubs.h":        p.stubsHeader,
		"stubs.c":        p.stubsSource,
	}
	if p.isElsewhere() {
		delete(files, "stubs_test.go") // which needs a library in the place of C's
	}
	if p.mayCallBack() {
		files["stubs_path.go"] = p.goFile(p.pathFile)
	}
	if p.verbs == nil {
		files["byteorder.go"] = copied(byteOrder)
		files["byteorder_test.go"] = copied(byteOrderTest)
		files["pthread.go"] = copied(pthread)
		files["pthread_arm64.go"] = copied(pthreadARM64)
		files["pthread_other.go"] = copied(pthreadOther)
	}
	if len(p.structs) == 0 {
		delete(files, "layout_test.go")
	}
	if p.hasBits() {
		files["bits.go"] = copied(strings.Replace(bitFields, "PACKAGE", p.name, 1))
	}
	written := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(files)) { // for errors in the same order every time
		text, err := files[name]()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		written[name] = text
	}
	if p.isElsewhere() {
		if err := p.elsewhere(written); err != nil {
			return nil, err
		}
	}
	return written, p.failed()
}

// failed returns the findings as one error, or nil if there are none.
func (p *pkg) failed() error {
	var errs []error
	for _, f := range p.findings {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

// replaceFolder makes dir hold exactly the given files.
func replaceFolder(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range old {
		if _, ok := files[entry.Name()]; !ok {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func copied(text string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte("// " + marker + "\n// " + license + "\n\n" + text), nil }
}

func (p *pkg) goFile(fill func(*jen.File)) func() ([]byte, error) {
	return goFile(p.path(), p.name, fill)
}

// path is the package's import path.
func (p *pkg) path() string {
	if p.isElsewhere() {
		return p.Path
	}
	return module + "/generated/" + p.name
}

// goFile returns a function that renders a Go file of the package at path. fill
// adds the declarations.
func goFile(path, name string, fill func(*jen.File)) func() ([]byte, error) {
	return func() ([]byte, error) {
		f := jen.NewFilePathName(path, name)
		f.HeaderComment(marker)
		f.HeaderComment(license)
		f.ImportNames(map[string]string{
			verbsPkg: "libibverbs", cmPkg: "librdmacm", cerrPkg: "cerr", dlPkg: "dl", enumPkg: "enum", goldenPkg: "golden", fakelibPkg: "fakelib",
		})
		fill(f)
		var b bytes.Buffer
		err := f.Render(&b)
		return b.Bytes(), err
	}
}
