// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/stat"
)

// Processes returns the processes of this user and network namespace that use
// the device, in the order of their PIDs, with their queue pairs and counters.
// If the environment variable VERBENA_NETWORK is set, it returns only those on
// that network. They need not be written in Go, and the caller need not use the
// device itself.
//
// Processes waits for a process that does not answer, such as a stopped one,
// until ctx ends, but for two seconds at most. The Error of that process then
// has the reason. Processes fails if the system does not list sockets. It may
// be called concurrently.
func Processes(ctx context.Context) ([]Process, error) {
	answers, err := link.Ask(ctx)
	if err != nil {
		return nil, fmt.Errorf("softroce.Processes: %w", err)
	}
	all := []Process{}
	for _, a := range answers {
		var p stat.Process
		if a.Err == nil {
			a.Err = json.Unmarshal(a.Data, &p)
		}
		if a.Err != nil {
			p = stat.Process{Error: a.Err.Error()}
		}
		p.PID = a.PID
		all = append(all, p)
	}
	return all, nil
}
