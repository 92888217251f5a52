// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/internal"
)

// copies maps the import path of a package to the folder in which a package of
// another module has its copy. The first five are the packages that are copied.
var copies = map[string]string{
	module + "/internal/bound/cerr":    "internal/cerr",
	module + "/internal/bound/dl":      "internal/dl",
	module + "/internal/bound/require": "internal/require",
	enumPkg:                            "internal/enum",
	goldenPkg:                          "internal/golden",
	// Generated code of this module imports these instead. They become the
	// copies, too.
	cerrPkg:                               "internal/cerr",
	dlPkg:                                 "internal/dl",
	"github.com/stretchr/testify/require": "internal/require",
}

// Render returns the files of the package in.Path, which is one of another
// module, by their paths below the package's folder. The package imports only
// packages below this folder and the standard library.
func Render(in Input) (map[string][]byte, error) {
	all, err := packages(in)
	if err != nil {
		return nil, err
	}
	rendered, err := renderAll(all)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, p := range all {
		maps.Copy(files, rendered[p])
	}
	return files, nil
}

// isElsewhere reports whether the package belongs to another module.
func (p *pkg) isElsewhere() bool { return p.Path != "" }

// inC returns the part of the names of C functions that stands for the package.
// It differs for packages with the same name, because a program cannot have two
// C functions with the same name.
func (p *pkg) inC() string {
	if p.isElsewhere() {
		return fmt.Sprintf("%s_%x", p.name, sha256.Sum256([]byte(p.Path)))[:len(p.name)+9]
	}
	return p.name
}

// libcTypes returns the path of the package that declares a type of libc, such
// as Be16. A package of another module declares those types itself that it
// uses.
func (p *pkg) libcTypes(name string) string {
	if p.isElsewhere() {
		p.used[name] = true
		return p.Path
	}
	return verbsPkg
}

// elsewhere adds the files that only a package of another module needs, and
// makes all files import the copies.
func (p *pkg) elsewhere(files map[string][]byte) error {
	add := func(name, text string) error {
		all, err := copied(strings.Replace(text, "package libibverbs\n", "package "+p.name+"\n", 1))()
		files[name] = all
		return err
	}
	var errs []error
	if p.used["Be16"] || p.used["Be32"] || p.used["Be64"] {
		errs = append(errs, add("byteorder.go", byteOrder), add("byteorder_test.go", byteOrderTest))
	}
	if p.used["PthreadMutex"] || p.used["PthreadCond"] {
		errs = append(errs, add("pthread.go", pthread), add("pthread_arm64.go", pthreadARM64), add("pthread_other.go", pthreadOther))
	}
	errs = append(errs, fs.WalkDir(internal.Sources, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(internal.Sources, name)
		if err != nil {
			return err
		}
		folder := copies[module+"/internal/"+path.Dir(name)]
		return add(path.Join(folder, path.Base(name)), strings.TrimPrefix(string(text), "// "+license+"\n\n"))
	}))
	for name, text := range files {
		if strings.HasSuffix(name, ".go") {
			var err error
			files[name], err = relocated(text, p.Path)
			errs = append(errs, err)
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// relocated returns a Go file with the imports changed to the copies, which are
// below the package to.
func relocated(text []byte, to string) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, spec := range file.Imports {
		from, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if folder, ok := copies[from]; ok {
			spec.Path.Value = strconv.Quote(to + "/" + folder)
		}
	}
	var b bytes.Buffer
	err = format.Node(&b, files, file)
	return b.Bytes(), err
}
