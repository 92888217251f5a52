// SPDX-License-Identifier: Apache-2.0

package conventions

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

var manualPage = regexp.MustCompile(`^\w+\([1-9]\)$`)

// LoadManual reads headers/manual.txt: the manual page, such as ibv_reg_mr(3),
// of each function that has one.
func LoadManual(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseManual(path, data)
}

// ParseManual reads the pages. name is the file name in errors.
func ParseManual(name string, data []byte) (map[string]string, error) {
	pages := map[string]string{}
	for n, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		page := words[0]
		if !manualPage.MatchString(page) || len(words) == 1 {
			return nil, fmt.Errorf("%s:%d: expected a page such as ibv_reg_mr(3) and its functions, found %q", name, n+1, line)
		}
		for _, function := range words[1:] {
			if old, ok := pages[function]; ok {
				return nil, fmt.Errorf("%s:%d: the function %s has a second page, after %s", name, n+1, function, old)
			}
			pages[function] = page
		}
	}
	return pages, nil
}
