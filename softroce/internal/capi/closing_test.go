// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// awaitLocked waits until cond, which is called with the node locked, returns
// true.
func awaitLocked(t *testing.T, what string, cond func(l *cmLibrary) bool) {
	t.Helper()
	l := self()
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		l.Lock()
		done := cond(l)
		l.Unlock()
		if done {
			return
		}
		require.True(t, time.Now().Before(end), what)
	}
}

// awaitClosing waits until the program closes the context c, and the close has
// unlocked the node.
func awaitClosing(t *testing.T, c *libibverbs.Context) {
	t.Helper()
	awaitLocked(t, "the context is not being closed", func(l *cmLibrary) bool { return l.contexts[c].closed })
}

// While a context is being closed, no call creates an object of it, or changes
// one so that the close could leave it behind.
func TestCallsWhileClosing(t *testing.T) {
	before := self().held()
	r := openRig(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer file.Close()
	x, err := r.xrcd(file, syscall.O_CREAT)
	require.NoError(t, err)
	cq := r.cq(4)
	qp := r.qp(libibverbs.IBV_QPT_UD, cq, 4)
	target := r.xrcTarget(x)
	srq, failure := verbs.CreateSrq(r.pd, &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}})
	require.Zero(t, failure)
	counter, failure := verbs.CreateCompCntr(r.c, &libibverbs.CompCntrInitAttr{})
	require.Zero(t, failure)
	td, failure := verbs.AllocTd(r.c, &libibverbs.TdInitAttr{})
	require.Zero(t, failure)
	parent, failure := verbs.AllocParentDomain(r.c, &libibverbs.ParentDomainInitAttr{Pd: r.pd, Td: td})
	require.Zero(t, failure)
	dm, failure := verbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: 64})
	require.Zero(t, failure)
	fd, err := syscall.Dup(int(r.c.CmdFd))
	require.NoError(t, err)
	defer syscall.Close(fd)
	var group libibverbs.Gid
	*group.Raw() = [16]byte{10: 0xFF, 11: 0xFF, 12: 224, 15: 98}
	buffer := uintptr(start(r.memory))

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	raw := (*softCQ)(self().cqs[cq].soft())
	lockCQ(raw) // the close waits for it as it destroys the queue pair, with the node unlocked
	closed := make(chan error)
	go func() { closed <- libibverbs.CloseDevice(r.c) }()
	awaitClosing(t, r.c)
	failures := map[string]error{}
	for name, call := range map[string]func() error{
		"protection domain": func() error { return failed(verbs.AllocPd(r.c)) },
		"thread domain":     func() error { return failed(verbs.AllocTd(r.c, &libibverbs.TdInitAttr{})) },
		"parent domain": func() error {
			return failed(verbs.AllocParentDomain(r.c, &libibverbs.ParentDomainInitAttr{Pd: r.pd, Td: td}))
		},
		"channel":          func() error { return failed(verbs.CreateCompChannel(r.c)) },
		"completion queue": func() error { return failed(verbs.CreateCq(r.c, 4, 0, nil, 0)) },
		"extended completion queue": func() error {
			return failed(verbs.CreateCqEx(r.c, &libibverbs.CqInitAttrEx{Cqe: 4, CompMask: libibverbs.IBV_CQ_INIT_ATTR_MASK_PD, ParentDomain: parent}))
		},
		"shared receive queue": func() error {
			return failed(verbs.CreateSrq(r.pd, &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}}))
		},
		"queue pair": func() error {
			return failed(verbs.CreateQp(r.pd, &libibverbs.QpInitAttr{SendCq: cq, RecvCq: cq, QpType: libibverbs.IBV_QPT_UD}))
		},
		"target queue pair": func() error {
			return failed(verbs.CreateQpEx(r.c, &libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_XRC_RECV, CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD, Xrcd: x}))
		},
		"opening": func() error {
			return failed(verbs.OpenQp(r.c, &libibverbs.QpOpenAttr{
				CompMask: libibverbs.IBV_QP_OPEN_ATTR_NUM | libibverbs.IBV_QP_OPEN_ATTR_XRCD | libibverbs.IBV_QP_OPEN_ATTR_TYPE,
				QpNum:    target.QpNum, Xrcd: x, QpType: libibverbs.IBV_QPT_XRC_RECV,
			}))
		},
		"XRC domain": func() error {
			return failed(verbs.OpenXrcd(r.c, &libibverbs.XrcdInitAttr{
				CompMask: libibverbs.IBV_XRCD_INIT_ATTR_FD | libibverbs.IBV_XRCD_INIT_ATTR_OFLAGS, Fd: int32(file.Fd()), Oflags: syscall.O_CREAT,
			}))
		},
		"region":           func() error { return failed(verbs.RegMr(r.pd, buffer, 4096, 0)) },
		"on-demand region": func() error { return failed(verbs.RegMr(r.pd, buffer, 4096, onDemand)) },
		"null region":      func() error { return failed(verbs.AllocNullMr(r.pd)) },
		"region of memory": func() error { return failed(verbs.RegDmMr(r.pd, dm, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED)) },
		"device memory":    func() error { return failed(verbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: 8})) },
		"DMA handle": func() error {
			return failed(verbs.AllocDmah(r.c, &libibverbs.DmahInitAttr{CompMask: libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH}))
		},
		"import of memory": func() error { return failed(verbs.ImportDm(r.c, dm.Handle)) },
		"window":           func() error { return failed(verbs.AllocMw(r.pd, libibverbs.IBV_MW_TYPE_1)) },
		"address handle":   func() error { return failed(verbs.CreateAh(r.pd, &libibverbs.AhAttr{IsGlobal: 1, PortNum: 1})) },
		"counter":          func() error { return failed(verbs.CreateCompCntr(r.c, &libibverbs.CompCntrInitAttr{})) },
		"buffer":           func() error { return failed(verbs.AllocBuf(r.pd, 64, new(*libibverbs.Buf))) },
		"import of domain": func() error { return failed(verbs.ImportPd(r.c, r.pd.Handle)) },
		"import of region": func() error { return failed(verbs.ImportMr(r.pd, r.mr.Handle)) },
		"import of device": func() error { return failed(verbs.ImportDevice(int32(fd))) },
		"joining a group":  func() error { return verbs.AttachMcast(qp, &group, 0) },
		"attaching": func() error {
			return verbs.QpAttachCompCntr(target, counter, &libibverbs.QpAttachCompCntrAttr{OpMask: 1})
		},
		"modifying":         func() error { return verbs.ModifyQp(qp, &libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE) },
		"resizing":          func() error { return verbs.ResizeCq(cq, 8) },
		"resizing receives": func() error { return verbs.ModifySrq(srq, &libibverbs.SrqAttr{MaxWr: 8}, libibverbs.IBV_SRQ_MAX_WR) },
		"destroying":        func() error { return verbs.DestroyQp(qp) },
		"destroying it too": func() error { return verbs.DestroySrq(srq) },
		"destroying a CQ":   func() error { return verbs.DestroyCq(cq) },
		"closing":           func() error { return verbs.CloseDevice(r.c) },
	} {
		failures[name] = call()
	}
	unlockCQ(raw)
	require.NoError(t, <-closed)
	for name, err := range failures {
		want := syscall.EINVAL
		if name == "import of device" {
			want = syscall.ENODEV
		}
		require.Equal(t, want, err, name)
	}
	require.Equal(t, before, self().held())
}

// xrcTarget makes a queue pair of the type XRC_RECV.
func (r *rig) xrcTarget(x *libibverbs.Xrcd) *libibverbs.Qp {
	r.t.Helper()
	qp, err := verbs.CreateQpEx(r.c, &libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_XRC_RECV, CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD, Xrcd: x})
	require.Zero(r.t, err)
	return qp
}

// A counter goes with its context although it is attached to a queue pair that
// another context has open, and the queue pair can have another counter then.
func TestCounterOfSharedQueuePair(t *testing.T) {
	before := self().held()
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer file.Close()
	first, second := openRig(t), openRig(t)
	defer func() {
		require.NoError(t, libibverbs.CloseDevice(second.c))
		require.Equal(t, before, self().held())
	}()
	open := func(r *rig) *libibverbs.Xrcd {
		x, err := r.xrcd(file, syscall.O_CREAT)
		require.NoError(t, err)
		return x
	}
	attach := func(r *rig, qp *libibverbs.Qp) error {
		counter, failure := verbs.CreateCompCntr(r.c, &libibverbs.CompCntrInitAttr{})
		require.Zero(t, failure)
		failure = verbs.QpAttachCompCntr(qp, counter, &libibverbs.QpAttachCompCntrAttr{OpMask: libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RECV})
		if failure == 0 {
			return nil
		}
		return failure
	}
	qp := first.xrcTarget(open(first))
	same, failure := verbs.OpenQp(second.c, &libibverbs.QpOpenAttr{
		CompMask: libibverbs.IBV_QP_OPEN_ATTR_NUM | libibverbs.IBV_QP_OPEN_ATTR_XRCD | libibverbs.IBV_QP_OPEN_ATTR_TYPE,
		QpNum:    qp.QpNum, Xrcd: open(second), QpType: libibverbs.IBV_QPT_XRC_RECV,
	})
	require.Zero(t, failure)
	require.NoError(t, attach(first, qp))
	require.ErrorIs(t, attach(second, same), syscall.EBUSY)
	counters := self().held()["counters"]
	require.NoError(t, libibverbs.CloseDevice(first.c))
	require.Equal(t, counters-1, self().held()["counters"])
	require.NoError(t, attach(second, same))
}

// has reports whether the program can use the completion queue c.
func (l *library) has(c *libibverbs.Cq) bool {
	for _, q := range l.byCQ {
		if q.c == c {
			return true
		}
	}
	return false
}

// To close a context ends the waits of calls that destroy its queues for
// acknowledgements of events.
func TestCloseEndsWaits(t *testing.T) {
	for name, wait := range map[string]func(t *testing.T, r *rig) (destroy func() syscall.Errno, waiting func(l *cmLibrary) bool){
		"completion event": func(t *testing.T, r *rig) (func() syscall.Errno, func(*cmLibrary) bool) {
			channel, err := libibverbs.CreateCompChannel(r.c)
			require.NoError(t, err)
			cq, err := libibverbs.CreateCq(r.c, 4, nil, channel, 0)
			require.NoError(t, err)
			qp := r.qp(libibverbs.IBV_QPT_UD, cq, 4)
			r.ready(qp, 0)
			require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
			r.postSend(qp, r.part(0, 8), r.ah(), qp.QpNum)
			_, _, err = libibverbs.GetCqEvent(channel)
			require.NoError(t, err)
			require.NoError(t, libibverbs.DestroyQp(qp))
			return func() syscall.Errno { return verbs.DestroyCq(cq) }, func(l *cmLibrary) bool { return !l.has(cq) }
		},
		"asynchronous event": func(t *testing.T, r *rig) (func() syscall.Errno, func(*cmLibrary) bool) {
			cq := r.cq(1)
			qp := r.qp(libibverbs.IBV_QPT_UD, cq, 4)
			r.ready(qp, 0)
			ah := r.ah()
			for range 3 { // overruns the queue
				r.postSend(qp, r.part(0, 8), ah, qp.QpNum)
			}
			var e libibverbs.AsyncEvent
			require.NoError(t, libibverbs.GetAsyncEvent(r.c, &e))
			require.Equal(t, libibverbs.IBV_EVENT_CQ_ERR, e.EventType)
			require.NoError(t, libibverbs.DestroyQp(qp))
			return func() syscall.Errno { return verbs.DestroyCq(cq) }, func(l *cmLibrary) bool { return !l.has(cq) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := self().held()
			r := openRig(t)
			destroy, waiting := wait(t, r)
			destroyed, closed := make(chan syscall.Errno, 1), make(chan error, 1)
			go func() { destroyed <- destroy() }()
			awaitLocked(t, "the call does not wait", waiting)
			go func() { closed <- libibverbs.CloseDevice(r.c) }()
			for range 2 {
				select {
				case err := <-destroyed:
					require.Zero(t, err)
				case err := <-closed:
					require.NoError(t, err)
				case <-time.After(patience):
					require.FailNow(t, "a call still waits")
				}
			}
			require.Equal(t, before, self().held())
		})
	}
}
