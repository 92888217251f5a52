// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ibverbs_test

import (
	"encoding/binary"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// tellEvents puts a pipe in the place of the kernel's descriptor of the
// device's events, and returns a function that tells the library of one as the
// kernel does. Nothing can be made on the device from then on.
func (r *rig) tellEvents() func(element uint64, typ ibverbs.EventType) {
	r.t.Helper()
	fd := int(r.c.Raw().AsyncFd)
	kept := must(syscall.Dup(fd))(r.t)
	read, write, err := os.Pipe()
	require.NoError(r.t, err)
	r.cleanup(write)
	require.NoError(r.t, syscall.Dup3(int(read.Fd()), fd, syscall.O_CLOEXEC))
	require.NoError(r.t, read.Close())
	r.t.Cleanup(func() {
		require.NoError(r.t, syscall.Dup3(kept, fd, syscall.O_CLOEXEC))
		require.NoError(r.t, syscall.Close(kept))
	})
	return func(element uint64, typ ibverbs.EventType) {
		r.t.Helper()
		told := binary.NativeEndian.AppendUint64(nil, element)
		told = binary.NativeEndian.AppendUint32(told, uint32(typ))
		told = binary.NativeEndian.AppendUint32(told, 0)
		require.Equal(r.t, 16, must(write.Write(told))(r.t))
	}
}

// The C library itself makes of what the kernel tells, for each type, the event
// that this package expects of it, and counts one acknowledgement. Soft-RoCE's
// driver can raise a few of them only; tests/provider has them all with a
// device of its own.
func TestToldEvents(t *testing.T) {
	testdevice.Needs(t, testdevice.Kernel)
	r := open(t)
	cq := r.cq(4, nil)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 4})
	qp := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, SRQ: srq})
	memory := must(mem.Map(int(unsafe.Sizeof(libibverbs.Wq{}))))(t) // Soft-RoCE has no WQs
	t.Cleanup(func() { require.NoError(t, mem.Unmap(memory)) })
	wq := (*libibverbs.Wq)(unsafe.Pointer(&memory[0]))
	wq.WqNum = 77
	tell := r.tellEvents()
	address := func(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
	classes := map[ibverbs.EventClass]struct {
		element uint64
		object  ibverbs.EventObject
		number  uint32
		acks    *uint32
	}{
		ibverbs.EventClassCQ:     {address(unsafe.Pointer(cq.Raw())), cq, cq.Raw().Handle, &cq.Raw().AsyncEventsCompleted},
		ibverbs.EventClassQP:     {address(unsafe.Pointer(qp.Raw())), qp, qp.Num(), &qp.Raw().EventsCompleted},
		ibverbs.EventClassSRQ:    {address(unsafe.Pointer(srq.Raw())), srq, srq.Raw().Handle, &srq.Raw().EventsCompleted},
		ibverbs.EventClassWQ:     {address(unsafe.Pointer(wq)), nil, 77, &wq.EventsCompleted},
		ibverbs.EventClassPort:   {2, nil, 2, nil},
		ibverbs.EventClassDevice: {},
	}
	for typ := ibverbs.EventCQError; typ <= ibverbs.EventDeviceSpeedChange; typ++ {
		want, ok := classes[typ.Class()]
		require.True(t, ok, "%v", typ)
		tell(want.element, typ)
		ev := must(r.c.NextEvent(limit(t)))(t)
		require.Equal(t, ibverbs.Event{Type: typ, Device: r.c, Object: want.object, Number: want.number}, ev, "%v", typ)
		if want.acks != nil {
			require.EqualValues(t, 1, *want.acks, "%v", typ)
			*want.acks = 0 // the kernel has told of none, and what destroys the object waits for as many
		}
	}
	_, ok, err := r.c.PollEvent()
	require.NoError(t, err)
	require.False(t, ok)
	_, err = cq.Poll(make([]ibverbs.WC, 1))
	require.ErrorIs(t, err, ibverbs.ErrCQOverrun)
}

// CreateCQ fails if there is no descriptor left to read events with.
func TestNoDescriptorForEvents(t *testing.T) {
	r := open(t)
	free := must(os.Open(os.DevNull))(t)
	next := free.Fd()
	require.NoError(t, free.Close())
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(next), Max: was.Max}))
	_, err := r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, err, syscall.EMFILE)

	r.cleanup(must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1}))(t))
}
