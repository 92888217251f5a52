// SPDX-License-Identifier: Apache-2.0

package conventions

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Provider is the library of a driver, with the functions that it exports for
// programs.
type Provider struct {
	Soname    string
	Functions []ProviderFunction
}

// ProviderFunction is a function that a Provider exports. Node is its ELF
// version node. Kind is what it returns: "pointer", "code" for an errno,
// "count" for a number that is -1 with errno set if the function fails, "bool"
// or "void".
type ProviderFunction struct{ Name, Node, Kind string }

var (
	providerSoname = regexp.MustCompile(`^lib\w+\.so\.[0-9]+$`)
	providerNode   = regexp.MustCompile(`^[A-Z0-9]+_[0-9]+(\.[0-9]+)+$`)
	identifier     = regexp.MustCompile(`^[A-Za-z_]\w*$`)
	providerKinds  = []string{"pointer", "code", "count", "bool", "void"}
)

// LoadProviders reads headers/providers.txt.
func LoadProviders(path string) ([]*Provider, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseProviders(path, data)
}

// ParseProviders reads the libraries. name is the file name in errors.
func ParseProviders(name string, data []byte) ([]*Provider, error) {
	var all []*Provider
	known := map[string]bool{}
	for n, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case len(words) == 2 && words[0] == "library" && providerSoname.MatchString(words[1]):
			all = append(all, &Provider{Soname: words[1]})
		case len(all) > 0 && len(words) > 2 && providerNode.MatchString(words[0]) && slices.Contains(providerKinds, words[1]):
			last := all[len(all)-1]
			for _, function := range words[2:] {
				if known[function] || !identifier.MatchString(function) {
					return nil, fmt.Errorf("%s:%d: the function %q is listed twice, or is not a C identifier", name, n+1, function)
				}
				known[function] = true
				last.Functions = append(last.Functions, ProviderFunction{function, words[0], words[1]})
			}
		default:
			return nil, fmt.Errorf("%s:%d: expected a library such as libmlx5.so.1, or a node, a kind and functions, found %q", name, n+1, line)
		}
	}
	return all, nil
}
