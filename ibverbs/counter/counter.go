// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Counter counts the completions of queue pairs, instead of or in addition to
// completion queue entries. It has one number for requests that succeeded and
// one for requests that failed. Its methods may be called concurrently.
//
// A change of a number by Set or Add may be visible to Read only a little
// later. Set a number only while no requests are outstanding, because changes
// at the same time may be lost.
type Counter struct {
	object object.Object
	device *ibverbs.Device
	raw    *libibverbs.CompCntr
}

// Unit selects what a counter adds up.
type Unit = libibverbs.CompCntrType

// The units of counters.
const (
	Requests Unit = libibverbs.IBV_COMP_CNTR_TYPE_WRS
	Bytes    Unit = libibverbs.IBV_COMP_CNTR_TYPE_BYTES
)

// Ops selects the operations to count; combine them with |.
type Ops = libibverbs.QpAttachCompCntrOp

// The operations that can be counted. RemoteReads and RemoteWrites are
// operations of the peer on local memory.
const (
	Sends        Ops = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND
	Recvs        Ops = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RECV
	Reads        Ops = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
	Writes       Ops = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
	RemoteReads  Ops = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
	RemoteWrites Ops = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
)

// Create creates a counter; see ibv_create_comp_cntr(3).
func Create(device *ibverbs.Device, unit Unit) (*Counter, error) {
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	raw, err := libibverbs.CreateCompCntr(device.Raw(), &libibverbs.CompCntrInitAttr{Type: unit})
	if err != nil {
		return nil, sibling.Wrap(device.Name(), err)
	}
	c := &Counter{device: device, raw: raw}
	c.object.Init(fmt.Sprintf("completion counter %d of %s", raw.Handle, device.Name()), parent)
	return c, nil
}

func (c *Counter) self() *object.Object {
	if c == nil {
		return nil
	}
	return &c.object
}

// Attach makes the counter count completions of the queue pair, which must be
// in the reset or init state; see ibv_qp_attach_comp_cntr(3). Once it is
// attached, the queue pair must be closed before the counter. Only one counter
// can count each operation: attaching a second one fails with an error matching
// syscall.EBUSY.
func (c *Counter) Attach(qp *ibverbs.QP, ops Ops) error {
	const op = "ibv_qp_attach_comp_cntr"
	to := sibling.ObjectOf(qp)
	done, err := object.UseAll(to, c.self())
	if err != nil {
		return err
	}
	defer done()
	if err := sibling.SameDevice(op, to.Name(), qp.Device(), &c.object, c.device); err != nil {
		return err
	}
	if ops == 0 {
		return cerr.Refuse(op, to.Name(), "ops is 0; it must select at least one operation")
	}
	attr := &libibverbs.QpAttachCompCntrAttr{OpMask: ops}
	if err := libibverbs.QpAttachCompCntr(qp.Raw(), c.raw, attr); err != nil {
		return sibling.Wrap(fmt.Sprintf("%s to %s", c.object.Name(), to.Name()), err)
	}
	to.AddParent(&c.object)
	return nil
}

// Read returns how many requests completed successfully, or how many bytes they
// transferred, depending on the counter's unit; see ibv_create_comp_cntr(3).
func (c *Counter) Read() (uint64, error) { return c.read(libibverbs.ReadCompCntr) }

// ReadErrors is like Read, for requests that failed; see
// ibv_create_comp_cntr(3).
func (c *Counter) ReadErrors() (uint64, error) { return c.read(libibverbs.ReadErrCompCntr) }

// Set sets the number that Read returns; see ibv_create_comp_cntr(3).
func (c *Counter) Set(value uint64) error { return c.write(libibverbs.SetCompCntr, value) }

// SetErrors sets the number that ReadErrors returns; see
// ibv_create_comp_cntr(3).
func (c *Counter) SetErrors(value uint64) error {
	return c.write(libibverbs.SetErrCompCntr, value)
}

// Add adds amount to the number that Read returns; see ibv_create_comp_cntr(3).
func (c *Counter) Add(amount uint64) error { return c.write(libibverbs.IncCompCntr, amount) }

// AddErrors adds amount to the number that ReadErrors returns; see
// ibv_create_comp_cntr(3).
func (c *Counter) AddErrors(amount uint64) error {
	return c.write(libibverbs.IncErrCompCntr, amount)
}

func (c *Counter) read(call func(*libibverbs.CompCntr) (uint64, error)) (uint64, error) {
	if err := c.self().Use(); err != nil {
		return 0, err
	}
	defer c.object.Done()
	value, err := call(c.raw)
	return value, sibling.Wrap(c.object.Name(), err)
}

func (c *Counter) write(call func(*libibverbs.CompCntr, uint64) error, value uint64) error {
	if err := c.self().Use(); err != nil {
		return err
	}
	defer c.object.Done()
	return sibling.Wrap(c.object.Name(), call(c.raw, value))
}

// Raw returns the C object, which is valid until Close.
func (c *Counter) Raw() *libibverbs.CompCntr { return c.raw }

// Close destroys the counter; see ibv_create_comp_cntr(3). While queue pairs
// use it, Close does nothing and returns an *[ibverbs.BusyError].
func (c *Counter) Close() error {
	return c.self().Close(nil, func() error {
		return sibling.Wrap(c.object.Name(), sibling.UnlessRemoved(c.device, libibverbs.DestroyCompCntr(c.raw)))
	})
}
