// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/golden"
)

const folder = "../../docs/drawings"

// The files are those that the program writes, and there are no others.
func TestDrawingsAreCurrent(t *testing.T) {
	var names []string
	for _, d := range drawings {
		file, misfits := d.svg()
		require.Empty(t, misfits, "%s: texts that are wider than their boxes", d.name)
		golden.Compare(t, filepath.Join(folder, d.name+".svg"), string(file))
		names = append(names, filepath.Join(folder, d.name+".svg"))
	}
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	require.NoError(t, err)
	require.ElementsMatch(t, names, files)
}

// The files are XML, and say what they show to readers that do not see it.
func TestDrawingsAreReadable(t *testing.T) {
	for _, d := range drawings {
		file, _ := d.svg()
		elements := map[string]int{}
		for decoder := xml.NewDecoder(strings.NewReader(string(file))); ; {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, d.name)
			if start, ok := token.(xml.StartElement); ok {
				elements[start.Name.Local]++
			}
		}
		require.Equal(t, 1, elements["title"], d.name)
		require.Equal(t, 1, elements["desc"], d.name)
		require.Greater(t, elements["text"], 10, d.name)
		require.Contains(t, string(file), "prefers-color-scheme: dark")
	}
}

// Texts that do not fit are found.
func TestMisfits(t *testing.T) {
	_, misfits := drawing{draw: func(c *canvas) {
		c.box("go", rect{0, 0, 100, 40}, "fits")
		c.box("go", rect{0, 0, 100, 40}, "does not fit into it", "fits")
		c.box("go", rect{0, 0, 100, 30}, "two", "lines")
	}}.svg()
	require.Equal(t, []string{"does not fit into it", "two", "lines"}, misfits)
}

// A page shows each drawing.
func TestDrawingsAreShown(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	for _, d := range drawings {
		require.True(t, strings.Contains(string(page), "](drawings/"+d.name+".svg)"), "docs/architecture.md does not show %s", d.name)
	}
}
