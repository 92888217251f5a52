// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"io"
	"strings"
)

// Status is the result of a check.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warn    Status = "warn" // RDMA works, but not for everybody or not for everything
	Fail    Status = "FAIL" // RDMA does not work
	Skipped Status = "skip" // not checked
)

// Finding is a result of a check with its description.
type Finding struct {
	Check    string   `json:"check"`
	Status   Status   `json:"status"`
	Found    string   `json:"found"`
	Remedy   string   `json:"remedy,omitempty"`   // what to do about a failure
	Commands []string `json:"commands,omitempty"` // commands for a shell, to be run as root unless they set a limit of that shell
}

// Report is the list of all findings.
type Report struct {
	Works    bool      `json:"works"`          // whether no check failed
	Peer     string    `json:"peer,omitempty"` // peer to which the path was checked
	Findings []Finding `json:"findings"`
}

// Text writes the report. Each finding has a line, followed by what to do.
// Checks that were skipped for one reason share a line.
func (r Report) Text(w io.Writer) {
	skipped := map[string][]string{} // names by reason
	for _, f := range r.Findings {
		if f.Status == Skipped {
			skipped[f.Found] = append(skipped[f.Found], f.Check)
		}
	}
	for _, f := range r.Findings {
		name := f.Check
		if names := skipped[f.Found]; f.Status == Skipped {
			if f.Check != names[0] {
				continue
			}
			name = strings.Join(names, ", ")
		}
		fmt.Fprintf(w, "%-4s %s: %s\n", f.Status, name, f.Found)
		if f.Remedy != "" {
			fmt.Fprintf(w, "     do: %s\n", f.Remedy)
		}
		for _, command := range f.Commands {
			fmt.Fprintf(w, "     run: %s\n", command)
		}
	}
	switch {
	case r.Works && r.Peer != "":
		fmt.Fprintf(w, "RDMA works here, and to %s.\n", r.Peer)
	case r.Works:
		fmt.Fprintln(w, "RDMA works here.")
	}
}
