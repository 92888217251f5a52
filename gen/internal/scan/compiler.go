// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"embed"
	"io/fs"
	"path/filepath"
	"strings"
)

// compilers holds files that a C compiler provides, rather than libc: its
// headers, and predefined.h with the macros that it predefines.
//
//go:embed compiler/*.h
var compilers embed.FS

// compilerDir is the folder in which cc finds the headers of compilers.
const compilerDir = "<compiler>"

// openCompiler opens a header of compilers. It returns false if name is not in
// compilerDir.
func openCompiler(name string) (fs.File, bool, error) {
	rest, ok := strings.CutPrefix(filepath.ToSlash(name), compilerDir+"/")
	if !ok {
		return nil, false, nil
	}
	file, err := compilers.Open("compiler/" + rest)
	return file, true, err
}

// predefined returns the macros that a compiler predefines.
func predefined() string {
	text, err := compilers.ReadFile("compiler/predefined.h")
	if err != nil {
		panic(err) // it is part of this program
	}
	return string(text)
}
