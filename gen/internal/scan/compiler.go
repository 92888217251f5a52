// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"embed"
	"io/fs"
	"path/filepath"
	"strings"
)

// compilers are what a compiler brings, and not libc: what it predefines, and
// headers.
//
//go:embed compiler/*.h
var compilers embed.FS

// compilerDir is the folder of these headers, as cc sees it.
const compilerDir = "<compiler>"

// openCompiler opens a header that a compiler brings.
func openCompiler(name string) (fs.File, bool, error) {
	rest, ok := strings.CutPrefix(filepath.ToSlash(name), compilerDir+"/")
	if !ok {
		return nil, false, nil
	}
	file, err := compilers.Open("compiler/" + rest)
	return file, true, err
}

// predefined returns what a compiler predefines.
func predefined() string {
	text, err := compilers.ReadFile("compiler/predefined.h")
	if err != nil {
		panic(err) // it is part of this program
	}
	return string(text)
}
