// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// When the kernel has taken a device from its users, it answers EIO to all that
// they ask of it. No driver that runs without hardware lets it do so; here a
// filter of system calls answers instead. Everything else is real.

// refuse makes the kernel answer EIO, in this process and for ever, to the
// ioctls of RDMA verbs, and to writing and reading these descriptors.
func refuse(t *testing.T, write, read []int32) {
	t.Helper()
	const (
		sysSeccomp    = 317
		setModeFilter = 1
		allThreads    = 1
		verbsIoctl    = 0xc0181b01
		arch          = 0xc000003e

		loadWord = syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS
		ifEqual  = syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K
		give     = syscall.BPF_RET | syscall.BPF_K
		allow    = 0x7fff0000
		fail     = 0x00050000 | uint32(syscall.EIO)

		nrAt, archAt, arg0At, arg1At = 0, 4, 16, 24 // in struct seccomp_data
	)
	program := []syscall.SockFilter{
		{Code: loadWord, K: archAt},
		{Code: ifEqual, K: arch, Jt: 1},
		{Code: give, K: allow},
	}
	rule := func(nr, arg, value uint32) {
		program = append(program,
			syscall.SockFilter{Code: loadWord, K: nrAt},
			syscall.SockFilter{Code: ifEqual, K: nr, Jf: 3},
			syscall.SockFilter{Code: loadWord, K: arg},
			syscall.SockFilter{Code: ifEqual, K: value, Jf: 1},
			syscall.SockFilter{Code: give, K: fail})
	}
	rule(syscall.SYS_IOCTL, arg1At, verbsIoctl)
	for _, fd := range write {
		rule(syscall.SYS_WRITE, arg0At, uint32(fd))
	}
	for _, fd := range read {
		rule(syscall.SYS_READ, arg0At, uint32(fd))
	}
	program = append(program, syscall.SockFilter{Code: give, K: allow})
	filter := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	r, _, errno := syscall.Syscall(sysSeccomp, setModeFilter, allThreads, uintptr(unsafe.Pointer(&filter)))
	require.Zero(t, errno)
	require.Zero(t, r)
}

// inChild runs the test in a process of its own, and reports whether this is
// it.
func inChild(t *testing.T) bool {
	t.Helper()
	testdevice.Needs(t, testdevice.Guest)
	if os.Getenv("VERBENA_TEST_CHILD") != "" {
		return true
	}
	cmd := exec.Command(must(os.Executable())(t), "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "VERBENA_TEST_CHILD=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// All waits end, every call fails, and everything can be closed.
func TestRemovedDeviceRefuses(t *testing.T) {
	if !inChild(t) {
		return
	}
	r := open(t)
	ch := r.channel()
	b := r.end(ch)
	a := &end{rig: r, sendCQ: r.cq(1, nil), recvCQ: b.recvCQ, mr: r.alloc(64, anyAccess)}
	a.qp = r.qp(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SendQueue: depth, RecvQueue: 1})
	a.send = must(ibverbs.NewSendBatch(depth, 1))(t)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	joined := r.udEnd()
	group := ibverbs.GID{0: 0xff, 1: 0x12, 15: 1}
	require.NoError(t, joined.qp.AttachMulticast(group, 0))
	requests := a.sendCQ.Cap() + 1
	for id := range uint64(requests) {
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(id, ibverbs.SendSignaled) })
	}
	event := eventWaiter(limit(t), r.c)
	completion := waiter(limit(t), b.recvCQ)
	untilWaiting(t, b.recvCQ)

	refuse(t, []int32{r.c.Raw().CmdFd}, []int32{r.c.Raw().AsyncFd, ch.FD()})
	// The receives that the requests wait for are put into memory, without a
	// system call. What comes of them wakes the waits: completions for one, and
	// more than its queue can hold for the other.
	for id := range uint64(requests) {
		b.postRecv(t, id)
	}
	require.ErrorIs(t, ended(t, event), syscall.EIO)
	got := ended(t, completion)
	for got.err == nil { // what came before still counts
		got = ended(t, waiter(limit(t), b.recvCQ))
	}
	require.ErrorIs(t, got.err, syscall.EIO)

	a.send.Reset()
	require.NoError(t, a.send.Send(9, 0))
	for name, err := range map[string]error{
		"NextEvent":   second(r.c.NextEvent(limit(t))),
		"PostSend":    second(a.qp.PostSend(a.send)),
		"State":       second(a.qp.State()),
		"SetError":    a.qp.SetError(),
		"CreateCQ":    second(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1})),
		"AllocPD":     second(r.c.AllocPD()),
		"Alloc":       second(r.pd.Alloc(1, 0)),
		"QueryDevice": second(r.c.QueryDevice()),
	} {
		require.ErrorIs(t, err, syscall.EIO, name)
	}
	_, _, err := r.c.PollEvent()
	require.ErrorIs(t, err, syscall.EIO)

	var busy *ibverbs.BusyError
	require.ErrorAs(t, r.c.Close(), &busy)
	require.ErrorAs(t, b.recvCQ.Close(), &busy)
	require.NotEmpty(t, ibverbs.OpenObjects())
	// The test's cleanups close everything, and find nothing left.
}
