// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chosenTests finds which tests a line of scripts/test runs, and of which
// packages. Without packages, those of the line's folder. A pattern that the
// shell puts together is not found.
var (
	chosenTests = regexp.MustCompile(`\s-(?:test\.)?run[ =]('[^']+'|"(?:[^"$]|\$[|)])+\$?"|\w+)((?: \./\S+)*)(?:[\s)]|$)`)
	runFlag     = regexp.MustCompile(`\s-(?:test\.)?run\b`)
	chosenDir   = regexp.MustCompile(`\bcd (\S+) &&`)
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
)

// alternatives splits a pattern for -run into patterns for one name each.
func alternatives(pattern string) []string {
	inner, begins := strings.CutPrefix(pattern, "^(")
	inner, ends := strings.CutSuffix(inner, ")$")
	if !begins || !ends {
		return strings.Split(pattern, "|")
	}
	all := strings.Split(inner, "|")
	for i := range all {
		all[i] = "^" + all[i] + "$"
	}
	return all
}

// A stage that runs some tests of a package must not leave out one in silence
// that has another name now.
func TestStagesNameTests(t *testing.T) {
	require.Equal(t, []string{"^TestA$", "B"}, alternatives("^TestA$|B"))
	require.Equal(t, []string{"^TestA$", "^TestB.*$"}, alternatives("^(TestA|TestB.*)$"))
	for line, pattern := range map[string]string{
		`go test -run "^(TestA|TestB)$|C$" ./a`: `"^(TestA|TestB)$|C$"`,
		`x.test -test.run=TestA`:                `TestA`,
		`go test -run "^$one" ./a`:              "",
		`go test -run $one ./a`:                 "",
		`go test -run Test$one ./a`:             "",
	} {
		require.Regexp(t, runFlag, line)
		if found := chosenTests.FindStringSubmatch(line); pattern != "" {
			require.NotNil(t, found, line)
			require.Equal(t, pattern, found[1])
		} else {
			require.Nil(t, found, line)
		}
	}
	script, err := os.ReadFile("../scripts/test")
	require.NoError(t, err)
	chosen := 0
	for line := range strings.Lines(string(script)) {
		matches := chosenTests.FindAllStringSubmatch(line, -1)
		require.Len(t, runFlag.FindAllString(line, -1), len(matches), "write the pattern out, so that it is found: %s", line)
		for _, match := range matches {
			chosen++
			pattern, packages := strings.Trim(match[1], `'"`), strings.Fields(match[2])
			if dir := chosenDir.FindStringSubmatch(line); len(packages) == 0 && dir != nil {
				packages = []string{dir[1]}
			}
			require.NotEmpty(t, packages, line)
			var all []string
			for _, dir := range packages {
				names := namesIn(t, filepath.Join("..", dir))
				require.Regexp(t, "(?m)"+pattern, strings.Join(names, "\n"), dir)
				all = append(all, names...)
			}
			for _, one := range alternatives(pattern) {
				require.Regexp(t, "(?m)"+one, strings.Join(all, "\n"), "no test of %v", packages)
			}
		}
	}
	require.Greater(t, chosen, 10)
}

// namesIn returns the names of the tests in a folder.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, dir)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
	}
	return names
}
