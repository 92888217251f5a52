// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	// What a heading's anchor leaves out.
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the fragments by which links reach the headings of a page, as
// GitHub makes them.
func anchors(page string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := link.ReplaceAllString(m[1], "]")
		names = append(names, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(text), ""), " ", "-"))
	}
	return names
}

// Every link of every page to a file of the repository leads somewhere, and so
// does its fragment.
func TestDocsLinks(t *testing.T) {
	require.Equal(t, []string{"gid-no-such-gid", "pfc-ecn-and-dscp"}, anchors("# GID: `no such GID`\n```sh\n# comment\n```\n## PFC, [ECN](x.md) and DSCP\n"))
	links := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".github" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			name, fragment, hasFragment := strings.Cut(m[1], "#")
			target := path
			if name != "" {
				target = filepath.Join(filepath.Dir(path), name)
			}
			page, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				err = nil
			}
			require.NoError(t, err, "%s links to %s", path, m[1])
			require.True(t, !hasFragment || slices.Contains(anchors(string(page)), fragment), "%s: no heading for %s", path, m[1])
		}
		return nil
	}))
	require.Greater(t, links, 50)
}
