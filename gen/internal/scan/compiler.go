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

// amd64 is the line of predefined.h with the macro by which headers recognise
// amd64.
const amd64 = "#define __x86_64__ 1\n"

// predefined returns the macros that a compiler predefines. They are those of
// amd64, unless machine has the names of another architecture's macros.
func predefined(machine []string) string {
	text, err := compilers.ReadFile("compiler/predefined.h")
	if err != nil {
		panic(err) // it is part of this program
	}
	if len(machine) == 0 {
		return string(text)
	}
	var others strings.Builder
	for _, name := range machine {
		others.WriteString("#define " + name + " 1\n")
	}
	return strings.Replace(string(text), amd64, others.String(), 1)
}
