// SPDX-License-Identifier: Apache-2.0

// Drawings writes the drawings of the documents, docs/drawings/*.svg.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
)

//go:generate go run . -out ../../docs/drawings

// drawings are all of them.
var drawings = []drawing{layers, message, memory, connection}

func main() {
	log.SetFlags(0)
	log.SetPrefix("drawings: ")
	out := flag.String("out", "docs/drawings", "the `folder` to write to")
	flag.Parse()
	for _, d := range drawings {
		file, _ := d.svg()
		if err := os.WriteFile(filepath.Join(*out, d.name+".svg"), file, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
