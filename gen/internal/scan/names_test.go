// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

var (
	identifiers = regexp.MustCompile(`[A-Za-z_]\w*`)
	// cWords are those in a declaration that name nothing.
	cWords = strings.Fields(`_Noreturn __const __const__ __inline __inline__ __restrict __restrict__ __signed __signed__
		__volatile __volatile__ const enum extern inline restrict signed static struct union unsigned void volatile
		_Nonnull __attribute __attribute__ _Static_assert char short int long _Bool`)
)

// lost returns the names that a header declares, as a simple reading of its
// words finds them, and that the snapshot does not have. Names of parameters
// and what is in brackets are not looked at.
func lost(t testing.TB, header string, a *api.API) []string {
	snapshot, err := a.Marshal()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, name := range append(identifiers.FindAllString(string(snapshot), -1), cWords...) {
		known[name] = true
	}
	var missing []string
	for _, declaration := range topLevel(preprocessedWords(t, header)) {
		for _, name := range declaredNames(declaration) {
			if !known[name] && !slices.Contains(missing, name) {
				missing = append(missing, name)
			}
		}
	}
	return missing
}

// preprocessedWords returns the words of a header that includes nothing.
func preprocessedWords(t testing.TB, header string) []string {
	var b bytes.Buffer
	abi, err := cc.NewABI("linux", "amd64")
	require.NoError(t, err)
	cfg := &cc.Config{ABI: abi}
	require.NoError(t, cc.Preprocess(cfg, []cc.Source{{Name: "<predefined>", Value: "\n"}, {Name: "h", Value: header}}, spaced{&b}))
	var out []string
	for _, word := range wordsIn(b.String()) {
		if strings.TrimSpace(word) != "" {
			out = append(out, word)
		}
	}
	return out
}

// spaced puts a blank behind every word.
type spaced struct{ *bytes.Buffer }

func (s spaced) Write(p []byte) (int, error) {
	s.Buffer.Write(p)
	s.WriteByte(' ')
	return len(p), nil
}

// topLevel splits a header at what ends a declaration, and leaves out the
// bodies of functions.
func topLevel(all []string) [][]string {
	var out [][]string
	var current []string
	for i := 0; i < len(all); i++ {
		switch word := all[i]; {
		case word == ";":
			out = append(out, current)
			current = nil
		case word == "{" && i > 0 && all[i-1] == ")":
			i = skip(all, i)
			out = append(out, current)
			current = nil
		case bracket(word) > 0:
			end := skip(all, i)
			current = append(current, all[i:min(end+1, len(all))]...)
			i = end
		default:
			current = append(current, word)
		}
	}
	return out
}

// skip returns the index of the bracket that closes the one at i.
func skip(all []string, i int) int {
	depth := 0
	for ; i < len(all); i++ {
		if depth += bracket(all[i]); depth == 0 {
			break
		}
	}
	return i
}

// declaredNames returns the names in a declaration, but for those in
// parentheses, unless behind an asterisk that begins them, as (*name) does;
// those in brackets; and the values of enumerators. A lone struct tag is no
// declaration.
func declaredNames(d []string) []string {
	if len(d) == 2 && (d[0] == "struct" || d[0] == "union" || d[0] == "enum") {
		return nil
	}
	var names []string
	for i := 0; i < len(d); i++ {
		switch word := d[i]; {
		case word == "(" && i+2 < len(d) && d[i+1] == "*" && identifiers.MatchString(d[i+2]):
			names = append(names, d[i+2])
			i = skip(d, i)
		case word == "(" || word == "[":
			i = skip(d, i)
		case word == "=":
			for ; i+1 < len(d) && d[i+1] != "," && d[i+1] != "}"; i++ {
				if bracket(d[i+1]) > 0 {
					i = skip(d, i+1) - 1
				}
			}
		case identifiers.MatchString(word):
			names = append(names, word)
		}
	}
	return names
}

func TestLost(t *testing.T) {
	header := "#define N 3\nenum e { A = N, B = (C), D } *f(int p); struct s { int a[E]; union { int (*op)(int q); }; };\n" +
		"static inline int g(int p) { return h; }\nstruct only;\n"
	require.Equal(t, []string{"e", "A", "B", "D", "f", "s", "a", "op", "g"}, lost(t, header, new(api.API)))
}
