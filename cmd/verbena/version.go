// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/doctor/diagnose"
)

// version returns what --version prints.
func version() string { return program.Version("verbena") + "\n" + diagnose.Libraries() }
