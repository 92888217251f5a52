// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package softroce

import (
	"context"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Processes returns the processes that use the device. It always fails on this
// system, where no process can use it.
func Processes(context.Context) ([]Process, error) {
	return nil, cerr.Platform("softroce.Processes")
}
