// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Result is what a run has measured.
type Result struct {
	Test      string `json:"test"`
	Bandwidth bool   `json:"bandwidth"` // not latency
	Rows      []Row  `json:"rows"`
}

// Encode writes the result as JSON.
func (r Result) Encode(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// ReadResult reads what Encode has written.
func ReadResult(file string) (r Result, err error) {
	b, err := os.ReadFile(file)
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
