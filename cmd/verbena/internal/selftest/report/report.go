// SPDX-License-Identifier: Apache-2.0

// Package report says what the checks of verbena selftest have found: as a page
// for people, as JSON to send, and as a comparison of two devices.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
)

// version is the version of the report's form. A field that means something
// else than before needs another version.
const version = 1

// Report is what a selftest has found. It has no addresses, names or GUIDs of
// the machine, except in Identity.
type Report struct {
	Version int            `json:"version"`
	Verbena string         `json:"verbena"` // version of the program
	System  System         `json:"system"`
	Device  Device         `json:"device"`
	Two     bool           `json:"two_hosts"` // whether the ends were on two hosts
	Seconds float64        `json:"took_s"`
	Results []check.Result `json:"results"`

	Identity *Identity `json:"identity,omitempty"` // only if it was asked for
}

// System is what the machine runs.
type System struct {
	Kernel    string `json:"kernel"`    // release, such as 6.12.48-amd64
	Processor string `json:"processor"` // as Go calls it, such as amd64
	Libraries string `json:"libraries"` // where the verbs come from
}

// Identity names the machine and the device.
type Identity struct {
	Host   string   `json:"host"`
	Device string   `json:"device"`
	GUID   string   `json:"guid"`
	GIDs   []string `json:"gids"`
}

// New returns a report of results.
func New(verbena string, seconds float64, system System, device Device, results []check.Result) Report {
	return Report{Version: version, Verbena: verbena, System: system, Device: device, Seconds: seconds, Results: results}
}

// longest is the size in bytes of the largest file that can be a report. Those
// of today's checks have 40 kB.
const longest = 4 << 20

// Read reads a report from a file, or from a pipe until ctx ends.
func Read(ctx context.Context, path string) (r Report, err error) {
	text, err := program.ReadFile(ctx, path, longest)
	if err != nil {
		return r, err
	}
	var form struct {
		Version int `json:"version"`
	}
	err = json.Unmarshal(text, &form) // first, as the rest may have another form in another version
	switch {
	case err != nil:
	case form.Version == 0:
		err = errors.New("it has no version")
	case form.Version != version:
		return r, fmt.Errorf("%s is a report of version %d, and this program reads version %d", path, form.Version, version)
	default:
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s is not a report of verbena selftest: %w", path, err)
	}
	return r, nil
}

// Write writes the report to a file.
func (r Report) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Count returns how many checks have an outcome.
func (r Report) Count(o check.Outcome) (n int) {
	for _, result := range r.Results {
		if result.Outcome == o {
			n++
		}
	}
	return n
}

// with returns the results with an outcome.
func (r Report) with(o check.Outcome) (all []check.Result) {
	for _, result := range r.Results {
		if result.Outcome == o {
			all = append(all, result)
		}
	}
	return all
}

// result returns the result of a check.
func (r Report) result(name string) (check.Result, bool) {
	i := slices.IndexFunc(r.Results, func(result check.Result) bool { return result.Check == name })
	if i < 0 {
		return check.Result{}, false
	}
	return r.Results[i], true
}
