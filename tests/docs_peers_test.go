// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every row of the page about other bindings has a verdict. What is said to be
// there names what it is and the tests that show it; what is not has no test.
func TestDocsPeers(t *testing.T) {
	const header = "| theirs | Verbena | verdict | test |"
	page := documents(t)["proof/peers.md"]
	tests := regexp.MustCompile(`^Test\w+(, Test\w+)*$`)
	verdicts := map[string]int{}
	section, seen := "", map[string]bool{}
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section, seen = title, map[string]bool{}
		}
		if !strings.HasPrefix(line, "|") || line == header || line == "|---|---|---|---|" {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		require.Len(t, cells, 4, line)
		theirs, ours, verdict, test := cells[0], cells[1], cells[2], cells[3]
		require.False(t, seen[theirs], "%s: %s twice", section, theirs)
		seen[theirs] = true
		require.NotEmpty(t, ours, line)
		switch verdict {
		case "have":
			require.Regexp(t, goName, ours, line)
			require.Regexp(t, tests, test, line)
		case "different name":
			require.Regexp(t, tests, test, line)
		case "not applicable", "missing":
			require.Equal(t, "-", test, line)
		default:
			require.Fail(t, "no verdict", line)
		}
		verdicts[verdict]++
	}
	t.Log(verdicts)
	require.Equal(t, 3, strings.Count(page, "\n## "), "pyverbs, rust-ibverbs and sideway")
}
