// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// Input is what is emitted, and what is known of it.
type Input struct {
	API       *api.API   // the newest snapshot
	Snapshots []*api.API // all of them, oldest first
	Known     *conventions.Table
	Since     *since.Table
	Strings   map[string]*conventions.Strings // by enum
	Manual    map[string]string               // manual page, by function
	Providers []*conventions.Provider         // drivers' libraries
}

// Load reads the folder headers.
func Load(facts string) (in Input, err error) {
	if in.Snapshots, err = api.LoadAll(filepath.Join(facts, "api")); err != nil {
		return in, err
	}
	in.API = in.Snapshots[len(in.Snapshots)-1]
	if in.Known, err = conventions.Load(filepath.Join(facts, "conventions.txt")); err != nil {
		return in, err
	}
	if in.Since, err = since.Load(filepath.Join(facts, "since.txt")); err != nil {
		return in, err
	}
	if in.Strings, err = conventions.LoadStrings(filepath.Join(facts, "strings.txt")); err != nil {
		return in, err
	}
	if in.Manual, err = conventions.LoadManual(filepath.Join(facts, "manual.txt")); err != nil {
		return in, err
	}
	in.Providers, err = conventions.LoadProviders(filepath.Join(facts, "providers.txt"))
	return in, err
}
