// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math/bits"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// IndirectionTable maps packets to work queues: the hash of a packet's header
// selects an entry. Its methods may be called concurrently.
type IndirectionTable struct {
	object object.Object
	device *ibverbs.Device
	raw    *libibverbs.RwqIndTable
	num    int
}

// maxTable limits the number of entries of a table. It is larger than the limit
// of any device.
const maxTable = 1 << 20

// CreateIndirectionTable creates a table whose entries are the work queues wqs;
// see ibv_create_rwq_ind_table(3). The number of entries must be a power of
// two; several may have the same queue. Few devices support tables; on others,
// the error matches errors.ErrUnsupported.
func CreateIndirectionTable(device *ibverbs.Device, wqs []*WQ) (*IndirectionTable, error) {
	const op = "ibv_create_rwq_ind_table"
	parents := []*object.Object{sibling.ObjectOf(device)}
	for _, wq := range wqs {
		parents = append(parents, wq.self())
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if n := len(wqs); n > maxTable || bits.OnesCount(uint(n)) != 1 {
		return nil, cerr.Refuse(op, device.Name(), "number of work queues is %d, not a power of two up to %d", n, maxTable)
	}
	raws := make([]*libibverbs.Wq, len(wqs))
	for i, wq := range wqs {
		if err := sibling.SameDevice(op, device.Name(), device, wq.self(), wq.pd.Device()); err != nil {
			return nil, err
		}
		raws[i] = wq.raw
	}
	var pinner runtime.Pinner // C gets a pointer to a pointer
	defer pinner.Unpin()
	pinner.Pin(&raws[0])
	raw, err := libibverbs.CreateRwqIndTable(device.Raw(), &libibverbs.RwqIndTableInitAttr{
		LogIndTblSize: uint32(bits.TrailingZeros(uint(len(raws)))), IndTbl: &raws[0],
	})
	if err != nil {
		return nil, sibling.Wrap(fmt.Sprintf("%d work queues on %s", len(wqs), device.Name()), err)
	}
	t := &IndirectionTable{device: device, raw: raw, num: int(raw.IndTblNum)}
	t.object.Init(fmt.Sprintf("indirection table %d of %s", raw.IndTblNum, device.Name()), parents...)
	return t, nil
}

func (t *IndirectionTable) self() *object.Object {
	if t == nil {
		return nil
	}
	return &t.object
}

// Num returns the table's number.
func (t *IndirectionTable) Num() int { return t.num }

// Raw returns the C object, which is valid until Close.
func (t *IndirectionTable) Raw() *libibverbs.RwqIndTable { return t.raw }

// Close destroys the table; see ibv_destroy_rwq_ind_table(3). While queue
// pairs use it, Close does nothing and returns an *[ibverbs.BusyError].
func (t *IndirectionTable) Close() error {
	return t.self().Close(nil, func() error {
		return sibling.Wrap(t.object.Name(), sibling.UnlessRemoved(t.device, libibverbs.DestroyRwqIndTable(t.raw)))
	})
}
