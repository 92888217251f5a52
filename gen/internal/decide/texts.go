// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// Texts holds the results of C functions such as ibv_wc_status_str in one
// version. They come from the file that tests/update-strings writes.
type Texts struct {
	Version string
	texts   map[string]map[int64]string // results, by function and argument
}

// LoadTexts reads the file. If it does not exist, the result has no texts.
func LoadTexts(path string) (*Texts, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return new(Texts), nil
	}
	if err != nil {
		return nil, err
	}
	return ParseTexts(path, data)
}

const firstLine = "# What the functions of rdma-core "

// ParseTexts reads the content of the file. name is the file name in errors.
func ParseTexts(name string, data []byte) (*Texts, error) {
	t := &Texts{texts: map[string]map[int64]string{}}
	for n, line := range strings.Split(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, firstLine); ok && n == 0 {
			t.Version, _, _ = strings.Cut(rest, " ")
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		function, rest, _ := strings.Cut(line, " ")
		number, text, ok := strings.Cut(rest, " ")
		value, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s:%d: expected a function, a value and a text, found %q", name, n+1, line)
		}
		if t.texts[function] == nil {
			t.texts[function] = map[int64]string{}
		}
		t.texts[function][value] = text
	}
	if t.Version == "" {
		return nil, fmt.Errorf("%s:1: expected %q and a version", name, firstLine)
	}
	return t, nil
}

// texts lists the new enumerators for which a C function returns a text that
// strings.txt lacks.
func (l *List) texts(a, b *api.API, facts Facts) {
	old := map[string]bool{}
	for _, e := range a.Enums {
		for _, v := range e.Values {
			old[v.Name] = true
		}
	}
	for _, e := range b.Enums {
		s := facts.Strings[e.Name]
		if s == nil {
			continue
		}
		var lines, unknown []string
		for _, v := range e.Values {
			if _, has := s.Text[v.Name]; has || old[v.Name] {
				continue
			}
			text, ok := facts.Texts.texts[s.Func][v.Value]
			switch {
			case facts.Texts.Version != b.Version || !ok:
				unknown = append(unknown, fmt.Sprintf("%s (%d)", v.Name, v.Value))
			case text != s.Other:
				lines = append(lines, fmt.Sprintf(`%s "%s"`, v.Name, text))
			}
		}
		if len(lines) > 0 {
			l.Strings = append(append(l.Strings, "# "+s.Func+", enum "+e.Name), lines...)
		}
		if len(unknown) > 0 {
			l.Look = append(l.Look, fmt.Sprintf("what %s prints for %s: tests/update-strings %s asks the library",
				s.Func, strings.Join(unknown, ", "), b.Version))
		}
	}
}
