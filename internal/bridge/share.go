// SPDX-License-Identifier: Apache-2.0

package bridge

import "github.com/verbena-go/verbena/generated/libibverbs"

// Share holds the functions that package ibverbs provides to package share.
var Share struct {
	// NewDevice returns the *Device of a C device. Close closes both.
	NewDevice func(raw *libibverbs.Context) (device any)

	// NewPD returns the *PD of a C domain that was imported on a *Device, which
	// must be in use. Close ends the import.
	NewPD func(device any, raw *libibverbs.Pd) (pd any)

	// NewMR returns the *MR of a C region that was imported on a *PD, which must
	// be in use. Only its object can be closed.
	NewMR func(pd any, raw *libibverbs.Mr, addr uint64, size int) (mr any)
}
