// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// A page names files in backticks, a comment of Go anywhere.
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	fileWord = regexp.MustCompile(`(?:^|[\s("'` + "`" + `])([\w*./-]*\w\.(?:go|c|h|s|py|sh|txt|tmpl|json|md|yml|map))(?:$|[\s)"'` + "`" + `,;:.])`)
)

// elsewhere are files that pages and comments name and that are not of the
// repository: headers of C, names with a placeholder, and files that are made.
var elsewhere = regexp.MustCompile(`^(?:\.\./)?(?:infiniband|rdma|rados|linux|sys|netinet|netlink/route)/\w+\.h$|` +
	`^(?:verbs|rdma_verbs|rdma_cm|efadv|mlx5dv|mlx5_api|mlx5_user_ioctl_verbs|hnsdv|ionic_dv|manadv|liburing|numa|cuda|hip_runtime_api)\.h$|` +
	`^headers/api/V(?:ERSION)?\.json$|NAME\.c$|` +
	`^real\.c$|^(?:send|receive)/main\.go$|^testdata/instructions\.txt$|^a\.b\.c$`)

// repositoryFiles are the paths of the repository's files.
type repositoryFiles []string

func listFiles(t *testing.T) repositoryFiles {
	t.Helper()
	out, err := exec.Command("git", "-C", "..", "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		t.Skip("no repository: ", err)
	}
	return strings.Fields(string(out))
}

// has reports whether there is a file that a text in a folder can mean by a
// name: of the repository's top, of the folder or of one around it, or of that
// base name. A star stands for any text.
func (all repositoryFiles) has(folder, name string) bool {
	return slices.ContainsFunc(all, func(file string) bool {
		if matched, _ := path.Match(name, path.Base(file)); matched {
			return true
		}
		for at := folder; ; at = path.Dir(at) {
			if matched, _ := path.Match(path.Join(at, name), file); matched {
				return true
			}
			if at == "." {
				return false
			}
		}
	})
}

// Every file that a page names in backticks, or a comment of Go, is there.
func TestDocsNameFiles(t *testing.T) {
	all := listFiles(t)
	require.True(t, all.has("docs", "docs_files_test.go"))
	require.True(t, all.has("docs/guide", "tests/docs_files_test.go"))
	require.True(t, all.has("tests", "testdata/consumer/main.go"))
	require.True(t, all.has(".", "tests/docs_files_*.go"))
	require.False(t, all.has("tests", "consumer/docs_files_test.go"))
	checked := 0
	check := func(at, folder, text string) {
		for _, m := range fileWord.FindAllStringSubmatch(text, -1) {
			checked++
			require.True(t, elsewhere.MatchString(m[1]) || all.has(folder, m[1]), "%s names %s, which is not there", at, m[1])
		}
	}
	for _, file := range all {
		switch {
		case path.Base(file) == "CHANGELOG.md": // which is also about what there was
		case path.Ext(file) == ".md":
			for _, m := range quoted.FindAllStringSubmatch(fenced.ReplaceAllString(readFile(t, file), ""), -1) {
				check(file, path.Dir(file), m[1])
			}
		case path.Ext(file) == ".go":
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, filepath.Join("..", file), nil, parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, group := range parsed.Comments {
				check(set.Position(group.Pos()).String(), path.Dir(file), group.Text())
			}
		}
	}
	require.Greater(t, checked, 100)
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	require.NoError(t, err)
	return string(text)
}
