// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Version is the version of a release of rdma-core, as a list of numbers. 59
// and 59.0 are the same version.
type Version []int

// ParseVersion reads a version such as 65.0.
func ParseVersion(s string) (Version, error) {
	var v Version
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || strconv.Itoa(n) != part || n < 0 {
			return nil, fmt.Errorf("%q is not a version such as 65.0", s)
		}
		v = append(v, n)
	}
	for len(v) > 1 && v[len(v)-1] == 0 {
		v = v[:len(v)-1]
	}
	return v, nil
}

// Compare returns -1 if v is older than w, 0 if they are the same, and 1 if v
// is newer.
func (v Version) Compare(w Version) int { return slices.Compare(v, w) }

// Versions returns the versions of the snapshots in a folder, oldest first.
func Versions(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	parsed := map[string]Version{}
	var names []string
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		if parsed[name], err = ParseVersion(name); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return parsed[a].Compare(parsed[b]) })
	return names, nil
}

// LoadAll reads the snapshots in a folder, oldest first. The bindings are made
// from the last one.
func LoadAll(dir string) ([]*API, error) {
	versions, err := Versions(dir)
	if err != nil {
		return nil, err
	}
	if len(versions) == 0 {
		return nil, fmt.Errorf("no snapshot such as 65.0.json in %s: %w", dir, os.ErrNotExist)
	}
	var all []*API
	for _, version := range versions {
		path := filepath.Join(dir, version+".json")
		a, err := Load(path)
		if err != nil {
			return nil, err
		}
		if a.Version != version {
			return nil, fmt.Errorf("%s: the snapshot is of version %q", path, a.Version)
		}
		all = append(all, a)
	}
	return all, nil
}
