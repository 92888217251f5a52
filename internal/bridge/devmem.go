// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// DevMem holds the functions that package ibverbs provides to package devmem.
var DevMem struct {
	// AccessProblem says why no memory region can have the flags. It returns ""
	// if one can.
	AccessProblem func(access libibverbs.AccessFlags) string

	// NewMR returns the *MR of a C region of size bytes on a *PD. It has no
	// memory of this process, and its addresses begin at 0. The domain and
	// parent must be in use.
	NewMR func(pd any, raw *libibverbs.Mr, access libibverbs.AccessFlags, size int, parent *object.Object) (mr any)

	// NewHostMR returns the *MR of memory of this process on a *PD, after op
	// registered it. It refuses what C would not notice. The domain and parent
	// must be in use.
	NewHostMR func(
		pd any, op string, memory []byte, access libibverbs.AccessFlags, parent *object.Object, register func() (*libibverbs.Mr, error),
	) (mr any, err error)

	// WithDMAHandle returns a RegisterOption that uses a DMA handle of a
	// *Device.
	WithDMAHandle func(handle *object.Object, device any, raw *libibverbs.Dmah) (option any)
}
