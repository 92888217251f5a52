// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// MRExport describes a memory region to a process that imports it.
type MRExport struct {
	Handle uint32 // number of the region in the kernel
	Addr   uint64 // address of the memory in the process that registered it
	Len    uint64 // bytes
}

// ExportMR returns the value to pass to [ImportMR] in a process that has
// imported the device and the protection domain.
func ExportMR(mr *ibverbs.MR) (MRExport, error) {
	o := sibling.ObjectOf(mr)
	if err := o.Use(); err != nil {
		return MRExport{}, err
	}
	defer o.Done()
	return MRExport{Handle: mr.Raw().Handle, Addr: mr.Remote().Addr, Len: uint64(mr.Len())}, nil
}

// ImportedMR is a memory region of another process. This process has the
// region's keys but cannot access its memory.
type ImportedMR struct{ mr *ibverbs.MR }

// ImportMR imports a memory region of the process that exported the device; see
// ibv_import_mr(3). The domain must be imported too.
func ImportMR(pd *ibverbs.PD, export MRExport) (*ImportedMR, error) {
	parent := sibling.ObjectOf(pd)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	what := fmt.Sprintf("MR of handle %d on %s", export.Handle, parent.Name())
	if export.Len > math.MaxInt {
		return nil, cerr.Refuse("ibv_import_mr", what, "Len is %d, more than %d", export.Len, math.MaxInt)
	}
	raw, err := libibverbs.ImportMr(pd.Raw(), export.Handle)
	if err != nil {
		return nil, sibling.Wrap(what, err)
	}
	return &ImportedMR{sealed.Open(pd.Internals()).ImportMR(raw, export.Addr, int(export.Len))}, nil
}

// LKey returns the key that local work requests use for the region. The
// addresses in these requests are those of the process that registered it.
func (mr *ImportedMR) LKey() uint32 { return mr.mr.LKey() }

// Len returns the size of the region in bytes.
func (mr *ImportedMR) Len() int { return mr.mr.Len() }

// Sub returns n bytes of the region starting at offset, for a work request of
// this process. The bytes cannot be sent inline. If they are outside the
// region, the batch refuses the request.
func (mr *ImportedMR) Sub(offset, n int) ibverbs.Segment {
	if mr == nil {
		return ibverbs.Segment{}
	}
	return mr.mr.Sub(offset, n)
}

// Remote describes the whole region to a peer. The region's access flags limit
// what the peer may do.
func (mr *ImportedMR) Remote() ibverbs.RemoteBuffer { return mr.mr.Remote() }

// Raw returns the C object, which is valid until Close.
func (mr *ImportedMR) Raw() *libibverbs.Mr { return mr.mr.Raw() }

// Close releases the import. The region stays registered in the other process.
func (mr *ImportedMR) Close() error {
	return mr.self().Close(nil, func() error { return libibverbs.UnimportMr(mr.mr.Raw()) })
}

func (mr *ImportedMR) self() *object.Object {
	if mr == nil {
		return nil
	}
	return sibling.ObjectOf(mr.mr)
}
