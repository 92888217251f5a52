// SPDX-License-Identifier: Apache-2.0

package since

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// snapshot holds the version and the names of a snapshot.
type snapshot struct {
	text    string
	version api.Version
	names   []api.Name
}

// Check compares the table with the snapshots, oldest first. A name that is new
// in a snapshot needs a line. Its release must come after that of the previous
// snapshot, and not after that of the snapshot itself. The error lists all
// problems, with the line to add for each missing one. Names in the snapshots
// others, of headers that these headers include, need no lines.
func (t *Table) Check(all []*api.API, others ...*api.API) error {
	snapshots, err := parse(all, others)
	if err != nil {
		return err
	}
	var errs []error
	first := eachNew(snapshots, func(name api.Name, old, s snapshot) {
		errs = append(errs, t.between(name, old, s))
	})
	for _, name := range t.order {
		at := fmt.Sprintf("%s:%d: %s", t.path, t.lines[name].number, name)
		switch i, known := first[name]; {
		case !known:
			errs = append(errs, fmt.Errorf("%s is in no snapshot: remove the line", at))
		case i == 0:
			errs = append(errs, fmt.Errorf("%s is in the oldest snapshot, of %s, already: remove the line", at, snapshots[0].text))
		}
	}
	return errors.Join(errs...)
}

// Missing returns the names that need a line and have none, with a proposed
// line for each. The proposal is right if there was no release between the two
// snapshots. Names in the snapshots others need no lines.
func (t *Table) Missing(all []*api.API, others ...*api.API) (names []api.Name, lines []string, err error) {
	snapshots, err := parse(all, others)
	if err != nil {
		return nil, nil, err
	}
	eachNew(snapshots, func(name api.Name, old, s snapshot) {
		if _, ok := t.lines[name]; !ok {
			names = append(names, name)
			lines = append(lines, proposal(name, old, s))
		}
	})
	return names, lines, nil
}

func parse(all, others []*api.API) ([]snapshot, error) {
	var snapshots []snapshot
	known := map[api.Name]bool{}
	for _, a := range others {
		for _, name := range a.Names() {
			known[name] = true
		}
	}
	for _, a := range all {
		version, err := api.ParseVersion(a.Version)
		if err != nil {
			return nil, err
		}
		snapshots = append(snapshots, snapshot{a.Version, version, slices.DeleteFunc(a.Names(), func(name api.Name) bool { return known[name] })})
	}
	return snapshots, nil
}

// eachNew calls visit for each name that a snapshot has and the snapshots
// before it do not have. old is the previous snapshot, and s the one with the
// name. eachNew returns the index of the first snapshot that has each name.
func eachNew(snapshots []snapshot, visit func(name api.Name, old, s snapshot)) map[api.Name]int {
	first := map[api.Name]int{}
	for i, s := range snapshots {
		for _, name := range s.names {
			if _, known := first[name]; known {
				continue
			}
			first[name] = i
			if i > 0 {
				visit(name, snapshots[i-1], s)
			}
		}
	}
	return first
}

// between returns an error if the table has no line, or a wrong one, for a name
// that is not in the snapshot old but in s.
func (t *Table) between(name api.Name, old, s snapshot) error {
	l, ok := t.lines[name]
	switch {
	case !ok:
		return fmt.Errorf("%s: no line for %s, which was added after %s, in %s at the latest; add a line with the first release that has it, such as: %s",
			t.path, name, old.text, s.text, proposal(name, old, s))
	case l.version.Compare(old.version) <= 0 || l.version.Compare(s.version) > 0:
		return fmt.Errorf("%s:%d: %s was added after %s, in %s at the latest, but the line says %s; name the first release that has it, such as: %s",
			t.path, l.number, name, old.text, s.text, l.release, proposal(name, old, s))
	}
	return nil
}

// proposal returns the line that is right if there was no release between the
// snapshots old and s.
func proposal(name api.Name, old, s snapshot) string {
	release := s.text
	if s.version[0] > old.version[0] {
		release = strconv.Itoa(s.version[0])
	}
	return release + " " + name.String()
}
