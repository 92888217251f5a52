package conventions

import (
	"fmt"
	"os"
	"strings"
)

// Strings is what a C function prints for the values of an enum.
type Strings struct {
	Func  string
	Enum  string
	Other string            // for every other value
	Text  map[string]string // by enumerator
}

// LoadStrings reads headers/strings.txt; the result is keyed by enum.
func LoadStrings(path string) (map[string]*Strings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]*Strings{}
	var current *Strings
	for n, line := range strings.Split(string(data), "\n") {
		words, err := fields(line)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s:%d: %w", path, n+1, err)
		case len(words) == 0:
		case words[0] == "strings" && len(words) == 4:
			current = &Strings{Func: words[1], Enum: words[2], Other: words[3], Text: map[string]string{}}
			all[current.Enum] = current
		case current != nil && len(words) == 2:
			current.Text[words[0]] = words[1]
		default:
			return nil, fmt.Errorf("%s:%d: expected an enumerator and its text, found %q", path, n+1, line)
		}
	}
	return all, nil
}
