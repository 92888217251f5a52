// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"embed"
	"strings"
)

// ownSources are the C functions of our own, a file for each package that has
// some.
//
//go:embed c/own_lib*.c
var ownSources embed.FS

// ownSource returns those of a package.
func ownSource(name string) string {
	text, _ := ownSources.ReadFile("c/own_" + name + ".c") // there may be none
	return string(text)
}

// notWritten is the reason for a function that could be bound but is not.
const notWritten = "inline with logic of its own: the C function of ours is not written yet"

// Written reports whether the C function of our own for an inline function is
// there.
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
