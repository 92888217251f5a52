// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"embed"
	"strings"
)

// ownSources holds the bindings' own C functions, in a file for each package
// that has some. They take the place of inline functions that do more than call
// an operation.
//
//go:embed c/own_lib*.c
var ownSources embed.FS

// ownSource returns the C source of a package's own functions, or "" if it has
// none.
func ownSource(name string) string {
	text, _ := ownSources.ReadFile("c/own_" + name + ".c") // there may be none
	return string(text)
}

// notWritten is the reason why a function is not bound although it could be.
const notWritten = "inline function that does more than call an operation, and for which gen has no C function yet"

// Written reports whether the bindings have a C function of their own for an
// inline function.
func Written(function string) bool {
	files, err := ownSources.ReadDir("c")
	if err != nil {
		panic(err) // the files are part of this program
	}
	for _, file := range files {
		source := ownSource(strings.TrimSuffix(strings.TrimPrefix(file.Name(), "own_"), ".c"))
		if strings.Contains(source, " own_"+function+"(") || strings.Contains(source, "*own_"+function+"(") {
			return true
		}
	}
	return false
}
