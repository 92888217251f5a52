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
// the device, sorted by process ID, with their queue pairs and counters. If the
// environment variable VERBENA_NETWORK is set, Processes returns only those on
// that network. The processes need not be written in Go, and the calling
// process need not use the device.
//
// Processes waits until all processes have answered or ctx ends, but for two
// seconds at most. A process that has not answered by then, such as a stopped
// one, is returned with an Error. Processes fails if ctx has ended before, or
// if the system's list of sockets cannot be read. It may be called
// concurrently.
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
