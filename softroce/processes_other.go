// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package softroce

import (
	"context"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Processes returns the processes that use the device. Here there are none.
func Processes(context.Context) ([]Process, error) {
	return nil, cerr.Platform("softroce.Processes")
}
