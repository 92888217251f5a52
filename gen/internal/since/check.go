// SPDX-License-Identifier: Apache-2.0

package since

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// snapshot is what the check needs of one.
type snapshot struct {
	text    string
	version api.Version
	names   []api.Name
}

// Check compares the table with the snapshots, oldest first. A name that is new
// in a snapshot needs a line, with a release after that of the previous
// snapshot and not after its own. The error joins all problems, and has the
// line to add for each missing one. The table does not cover the declarations
// of others, on which these headers build.
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

// Missing returns the names that need a line and have none, each with the line
// that is right if no release lies between the snapshots. Those of others do
// not count.
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

// eachNew calls visit with each name that a snapshot has and the ones before it
// lack, and with the one before. It returns which snapshot has each name first.
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

// between returns an error if there is no right line for a name that came after
// the snapshot old, at the latest with the snapshot s.
func (t *Table) between(name api.Name, old, s snapshot) error {
	l, ok := t.lines[name]
	switch {
	case !ok:
		return fmt.Errorf("%s: %s came after %s, at the latest with %s; add the line, with the first release that has it: %s",
			t.path, name, old.text, s.text, proposal(name, old, s))
	case l.version.Compare(old.version) <= 0 || l.version.Compare(s.version) > 0:
		return fmt.Errorf("%s:%d: %s came after %s, at the latest with %s, so not with %s; put, with the first release that has it: %s",
			t.path, l.number, name, old.text, s.text, l.release, proposal(name, old, s))
	}
	return nil
}

// proposal is the line that is right if nothing lies between the snapshots.
func proposal(name api.Name, old, s snapshot) string {
	release := s.text
	if s.version[0] > old.version[0] {
		release = strconv.Itoa(s.version[0])
	}
	return release + " " + name.String()
}
