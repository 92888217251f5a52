// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// Result is the result of a run.
type Result struct {
	Test       string  `json:"test"`       // name of the test, such as send_lat
	Connection string  `json:"connection"` // the type of the queue pairs
	QPs        int     `json:"queue_pairs"`
	Both       bool    `json:"both_ways"`
	Bandwidth  bool    `json:"bandwidth"`            // whether the test measures bandwidth rather than latency
	Duration   float64 `json:"duration_s,omitempty"` // duration of the test in seconds, if it has one
	Rows       []Row   `json:"rows"`
}

// NewResult returns the result of a test, without rows.
func NewResult(t *Test) Result {
	return Result{
		Test: t.Name(), Connection: transportName(t.Transport), QPs: t.QPs, Both: t.Both, Bandwidth: t.Bandwidth,
		Duration: t.Duration.Seconds(), Rows: []Row{},
	}
}

// longest is the size in bytes of the largest file that can be a result.
const longest = 16 << 20

// ReadResult reads a result from a file with its JSON, or from a pipe until ctx
// ends.
func ReadResult(ctx context.Context, file string) (r Result, err error) {
	b, err := program.ReadFile(ctx, file, longest)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	if len(r.Rows) == 0 {
		return r, fmt.Errorf("%s has no rows", file)
	}
	return r, nil
}
