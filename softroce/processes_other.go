// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package softroce

import (
	"context"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Processes returns the processes that use the device. It fails on this system,
// which has no such device.
func Processes(context.Context) ([]Process, error) {
	return nil, cerr.Platform("softroce.Processes")
}
