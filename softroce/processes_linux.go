// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/stat"
)

// Processes returns the processes of this user and network namespace that use the device, in the order of their
// numbers, with their queue pairs and counters: this one, too, if it does. With a text in the environment variable
// VERBENA_NETWORK, it returns those of this network only. They need not be Go programs, nor does this one use the device.
//
// It waits for a process that does not answer, such as one that is stopped, until ctx ends, and two seconds at most, and says so in
// its Error. It may be called concurrently. The error says that the system does not list sockets.
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
