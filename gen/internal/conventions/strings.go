// SPDX-License-Identifier: Apache-2.0

package conventions

import (
	"fmt"
	"os"
	"strings"
)

// Strings has the texts that a C function returns for the values of an enum.
type Strings struct {
	Func  string
	Enum  string
	Other string            // text of values that are not in Text
	Text  map[string]string // text of each enumerator, by name
}

// LoadStrings reads headers/strings.txt. The keys of the result are tags of
// enums.
func LoadStrings(path string) (map[string]*Strings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseStrings(path, data)
}

// ParseStrings reads the strings. name is the file name in errors.
func ParseStrings(name string, data []byte) (map[string]*Strings, error) {
	all := map[string]*Strings{}
	var current *Strings
	for n, line := range strings.Split(string(data), "\n") {
		words, err := fields(line)
		switch {
		case err != nil:
		case len(words) == 0:
		case words[0] == "strings" && len(words) == 4:
			current = &Strings{Func: words[1], Enum: words[2], Other: words[3], Text: map[string]string{}}
			if all[current.Enum] != nil {
				err = fmt.Errorf("the enum %s has a second list", current.Enum)
			}
			all[current.Enum] = current
		case current != nil && len(words) == 2:
			if _, ok := current.Text[words[0]]; ok {
				err = fmt.Errorf("the enumerator %s has a second text", words[0])
			}
			current.Text[words[0]] = words[1]
		default:
			err = fmt.Errorf("expected an enumerator and its text, found %q", line)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
		}
	}
	return all, nil
}
