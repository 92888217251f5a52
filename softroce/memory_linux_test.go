// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
)

// users are programs that use the memory of requests. They run on a queue pair
// a that is connected to the queue pair b, both in this process.
type users map[string]func(a, b *user)

// rightPrograms use memory only while it belongs to them.
var rightPrograms = users{
	"send": func(a, b *user) {
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		a.sent(1)
		a.memory[0] = 1
		b.received(1)
		b.memory[0] = 1
	},
	"inline data": func(a, b *user) {
		b.receive(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.Send(1, ibverbs.SendSignaled|ibverbs.SendInline, a.mr.Sub(0, 16))
		})
		a.memory[0] = 1
		a.sent(1)
	},
	"unsignaled sends before a signaled one": func(a, b *user) {
		for i := range 3 {
			b.receive(i*64, 64)
		}
		a.send(1, 0, 0, 64)
		a.send(2, 0, 64, 64)
		a.send(3, ibverbs.SendSignaled, 128, 64)
		a.sent(3)
		for i := range 192 {
			a.memory[i]++
		}
	},
	"memory beside that of requests": func(a, b *user) {
		b.receive(0, 64)
		a.send(1, ibverbs.SendSignaled, 64, 64)
		a.memory[63], a.memory[128], b.memory[64] = 1, 1, 1
		a.sent(1)
	},
	"the same memory in many sends": func(a, b *user) {
		for range 4 {
			b.receive(0, 64)
			a.send(1, ibverbs.SendSignaled, 0, 64)
		}
		_ = use(a.memory[0])
		for range 4 {
			a.sent(1)
		}
		a.memory[0] = 1
	},
	"receives into memory that is not used": func(a, b *user) {
		for range 4 {
			b.receive(0, 64)
		}
		for range 4 {
			a.send(1, ibverbs.SendSignaled, 0, 64)
		}
		for range 4 {
			b.received(1)
		}
		b.receive(0, 64)
		for range 4 {
			a.sent(1)
		}
	},
	"other goroutines poll": func(a, b *user) {
		turn := make(chan bool)
		for range 4 {
			b.receive(0, 64)
			a.memory[0]++
			a.send(1, ibverbs.SendSignaled, 0, 64)
			go func() {
				a.sent(1)
				b.received(1)
				turn <- true
			}()
			<-turn
			b.memory[0]++
		}
	},
	"message after the RDMA write": func(a, b *user) {
		for range 3 {
			b.receive(0, 8)
			a.posts(func(s *ibverbs.SendBatch) error {
				return s.Write(1, b.mr.Remote().Sub(1024, 1024), 0, a.mr.Sub(0, 1024))
			})
			a.send(2, ibverbs.SendSignaled, 0, 8)
			b.received(1)
			b.memory[1024]++
			b.memory[2047]++
			a.sent(2)
		}
	},
	"immediate data": func(a, b *user) {
		b.receive(0, 8)
		a.posts(func(s *ibverbs.SendBatch) error {
			return s.WriteImm(1, b.mr.Remote().Sub(1024, 1024), 7, ibverbs.SendSignaled, a.mr.Sub(0, 1024))
		})
		b.received(1)
		b.memory[1024]++
		a.sent(1)
	},
	"message after the RDMA read": func(a, b *user) {
		b.memory[64] = 1
		a.reads(1, 0, b, 64, 64)
		a.sent(1)
		b.receive(0, 8)
		a.send(2, ibverbs.SendSignaled, 0, 8)
		b.received(1)
		b.memory[64] = 2
		a.sent(2)
	},
	"the peer's program tells that an RDMA write is complete": func(a, b *user) {
		done := make(chan bool)
		go func() {
			a.writes(1, 0, b, 1024, 1024)
			a.sent(1)
			close(done)
		}()
		<-done
		b.memory[1024]++
	},
	"poll the last word of an RDMA write": func(a, b *user) {
		a.memory[1016] = 1
		a.writes(1, 0, b, 1024, 1024)
		last := (*uint32)(unsafe.Pointer(&b.memory[1024+1016]))
		for atomic.LoadUint32(last) == 0 {
			b.poll()
		}
		_ = use(b.memory[1024])
		a.sent(1)
	},
	"poll a word that a peer changes by atomics": func(a, b *user) {
		a.adds(1, 0, b, 64)
		word := (*uint64)(unsafe.Pointer(&b.memory[64]))
		for atomic.LoadUint64(word) == 0 {
			b.poll()
		}
		atomic.AddUint64(word, 1)
		a.sent(1)
		_ = use(a.memory[0])
	},
	"poll a word that a peer writes atomically": func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeRC, libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE)
		a.stores(1, b, 64)
		word := (*uint64)(unsafe.Pointer(&b.memory[64]))
		for atomic.LoadUint64(word) == 0 {
			b.poll()
		}
		a.sent(1)
		b.memory[64] = 0
	},
	"counted requests": func(first, _ *user) {
		a, b := countedUsers(first.device, counter.Writes, counter.Recvs)
		for i := range 100 { // more than the detector keeps
			b.receive(0, 8)
			a.writes(1, 64, b, 64, 64)
			a.send(2, ibverbs.SendSignaled, 0, 8)
			a.counts(i + 1)
			a.memory[64]++
			b.counts(i + 1)
			b.memory[0], b.memory[64] = 1, 1
			a.sent(1)
			a.sent(2)
			b.received(1)
		}
	},
	"counted accesses of the peer": func(first, _ *user) {
		a, b := countedUsers(first.device, counter.Writes, counter.RemoteWrites)
		for i := range 100 {
			a.writes(1, 64, b, 64, 64)
			b.counts(i + 1)
			b.memory[64]++
			a.counts(i + 1)
			a.sent(1)
		}
	},
	"fenced send of the result of a read": func(a, b *user) {
		b.receive(0, 8)
		a.reads(1, 0, b, 64, 8)
		a.send(2, ibverbs.SendSignaled|ibverbs.SendFence, 0, 8)
		a.sent(1)
		a.sent(2)
		b.received(1)
	},
	"read after a send from the same memory": func(a, b *user) {
		b.receive(0, 8)
		a.send(1, ibverbs.SendSignaled, 0, 8)
		a.reads(2, 0, b, 64, 8)
		a.sent(1)
		a.sent(2)
		b.received(1)
	},
	"closed queue pair": func(a, b *user) {
		b.receive(0, 64)
		a.writes(1, 0, b, 64, 64)
		a.send(1, ibverbs.SendSignaled, 0, 64)
		must(a.qp.Close())
		must(b.qp.Close())
		a.memory[0], b.memory[0], b.memory[64] = 1, 1, 1
	},
	"reset queue pair": func(a, b *user) {
		b.receive(0, 64)
		must(b.qp.ToReset())
		b.memory[0] = 1
	},
	"closed region": func(a, b *user) {
		b.receive(0, 64)
		a.writes(1, 0, b, 1024, 1024)
		time.Sleep(settle)
		must(b.mr.Close())
		b.memory[0], b.memory[1024] = 1, 1
	},
	"flushed receive": func(a, b *user) {
		b.receive(0, 64)
		must(b.qp.SetError())
		b.flushed(b.recvCQ)
		b.memory[0] = 1
	},
	"failed RDMA write": func(a, b *user) {
		remote := b.mr.Remote().Sub(0, 64)
		remote.RKey++
		a.posts(func(s *ibverbs.SendBatch) error { return s.Write(1, remote, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
		a.flushed(a.sendCQ)
		a.memory[0], b.memory[0] = 1, 1
	},
	"invalidated window": func(a, b *user) {
		mw := b.window(ibverbs.MWType2, 1024, 1024)
		remote := mw.Remote()
		a.posts(func(s *ibverbs.SendBatch) error { return s.Write(1, remote, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
		time.Sleep(settle)
		b.posts(func(s *ibverbs.SendBatch) error { return s.LocalInv(1, mw.RKey(), ibverbs.SendSignaled) })
		b.sent(1)
		b.memory[1024] = 1
		nextWC(a.sendCQ) // the write may have come too late
	},
	"message that invalidates a window": func(a, b *user) {
		mw := b.window(ibverbs.MWType2, 1024, 1024)
		remote := mw.Remote()
		b.receive(0, 8)
		a.posts(func(s *ibverbs.SendBatch) error { return s.Write(1, remote, 0, a.mr.Sub(0, 64)) })
		a.posts(func(s *ibverbs.SendBatch) error { return s.SendInv(2, mw.RKey(), ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
		b.received(1)
		b.memory[1024] = 1
		a.sent(2)
	},
	"shared receives": func(a, b *user) {
		b.share(a, 3)
		for i := range 3 {
			a.send(1, ibverbs.SendSignaled, 0, 8)
			b.received(1)
			b.memory[64*i] = 1
			a.sent(1)
		}
	},
	"receives that a peer names": func(a, b *user) {
		b.shareXRC(a, 3)
		for i := range 3 {
			a.writes(1, 64, b, 1024, 64)
			a.send(1, ibverbs.SendSignaled, 0, 8)
			b.received(1)
			b.memory[64*i], b.memory[1024] = 1, 1
			a.sent(1)
			a.sent(1)
			a.memory[0], a.memory[64] = 1, 1
		}
	},
	"datagram": func(first, _ *user) {
		a, b := datagramUsers(first.device)
		to, err := a.pd.CreateDestination(a.addr, b.addr)
		must(err)
		b.receive(0, 64)
		a.posts(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
		a.sent(1)
		a.memory[0] = 1
		b.received(1)
		b.memory[40] = 1
	},
	"unreliable RDMA write and a message": func(first, _ *user) {
		a, b := pairOfUsers(first.device, ibverbs.QPTypeUC, 0)
		for range 3 {
			b.receive(0, 8)
			a.writes(1, 0, b, 1024, 1024)
			a.sent(1)
			a.send(2, ibverbs.SendSignaled, 0, 8)
			a.sent(2)
			b.received(1)
			b.memory[1024]++
		}
	},
	"many requests at once": func(a, b *user) {
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				a, b := pairOfUsers(a.device, ibverbs.QPTypeRC, 0)
				for round := range 50 {
					b.receive(0, 64)
					a.memory[64] = byte(i)
					a.writes(1, 64, b, 64, 64)
					a.send(1, ibverbs.SendSignaled, 64, 64)
					a.sent(1)
					a.sent(1)
					b.received(1)
					b.memory[0], b.memory[64] = byte(round), byte(round)
				}
			})
		}
		group.Wait()
	},
}

// settle is the time in which the device executes a request that it can
// execute. No result depends on it.
const settle = 20 * time.Millisecond

const size = 8192

// user is an end of a connection in a program.
type user struct {
	device         *ibverbs.Device
	pd             *ibverbs.PD
	sendCQ, recvCQ *ibverbs.CQ
	srq            *ibverbs.SRQ
	qp             *ibverbs.QP
	addr           ibverbs.QPAddr
	mr             *ibverbs.MR
	memory         []byte
	counter        *counter.Counter
	xrcd           *ibverbs.XRCD // for XRC, the domain of the peer's requests
	peerSRQ        uint32        // number of the peer's shared receive queue for XRC; 0: none
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// result returns v, which a call has returned with err.
func result[T any](v T, err error) T {
	must(err)
	return v
}

//go:noinline
func use(b byte) byte { return b }

// allAccess lets peers do everything with a region.
const allAccess = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead |
	ibverbs.AccessRemoteAtomic | ibverbs.AccessWindowBind

// memoryOf returns the memory of a new user.
var memoryOf = func(pd *ibverbs.PD) *ibverbs.MR { return result(pd.Register(make([]byte, size), allAccess)) }

// newUser returns an end that is not connected.
func newUser(device *ibverbs.Device, kind ibverbs.QPType, ops ibverbs.SendOpsFlags) *user {
	u := &user{device: device}
	u.pd = result(device.AllocPD())
	u.mr = memoryOf(u.pd)
	u.memory = u.mr.Bytes()
	created.Lock()
	created.mrs = append(created.mrs, u.mr)
	created.Unlock()
	u.sendCQ = result(device.CreateCQ(ibverbs.CQConfig{CompQueue: 64}))
	u.recvCQ = result(device.CreateCQ(ibverbs.CQConfig{CompQueue: 64}))
	u.srq = result(u.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 16}))
	u.create(ibverbs.QPConfig{
		Type: kind, SendCQ: u.sendCQ, RecvCQ: u.recvCQ, SendQueue: 16, RecvQueue: 16, SendSegments: 2, RecvSegments: 2, MaxInline: 16, SendOps: ops,
	})
	return u
}

// created has the queue pairs and the memory that were created.
var created struct {
	sync.Mutex
	qps []*ibverbs.QP
	mrs []*ibverbs.MR
}

// create creates the queue pair.
func (u *user) create(c ibverbs.QPConfig) {
	u.qp = result(u.pd.CreateQP(c))
	created.Lock()
	created.qps = append(created.qps, u.qp)
	created.Unlock()
	u.addr = result(u.qp.Addr(ibverbs.QPAddrConfig{}))
}

// pairOfUsers returns two ends that are connected.
func pairOfUsers(device *ibverbs.Device, kind ibverbs.QPType, ops ibverbs.SendOpsFlags) (a, b *user) {
	a, b = newUser(device, kind, ops), newUser(device, kind, 0)
	connectUsers(a, b)
	return a, b
}

func connectUsers(a, b *user) {
	must(a.qp.ConnectTo(a.addr, b.addr, ibverbs.ConnectConfig{}))
	must(b.qp.ConnectTo(b.addr, a.addr, ibverbs.ConnectConfig{}))
}

// countedUsers returns two ends that are connected and count operations.
func countedUsers(device *ibverbs.Device, opsA, opsB counter.Ops) (a, b *user) {
	a, b = newUser(device, ibverbs.QPTypeRC, 0), newUser(device, ibverbs.QPTypeRC, 0)
	for u, ops := range map[*user]counter.Ops{a: opsA, b: opsB} {
		u.counter = result(counter.Create(device, counter.Requests))
		must(u.counter.Attach(u.qp, ops))
	}
	connectUsers(a, b)
	return a, b
}

// counts waits until the counter of u has counted n operations.
func (u *user) counts(n int) {
	until := time.Now().Add(time.Minute)
	for result(u.counter.Read()) < uint64(n) {
		if time.Now().After(until) {
			panic("not counted within a minute")
		}
	}
}

// datagramUsers returns two ends that can send datagrams.
func datagramUsers(device *ibverbs.Device) (a, b *user) {
	a, b = newUser(device, ibverbs.QPTypeUD, 0), newUser(device, ibverbs.QPTypeUD, 0)
	must(a.qp.Activate(a.addr, 0))
	must(b.qp.Activate(b.addr, 0))
	return a, b
}

func (u *user) posts(add func(*ibverbs.SendBatch) error) {
	batch := result(ibverbs.NewSendBatch(1, 2))
	must(add(batch))
	if u.peerSRQ != 0 {
		must(batch.WR(0).SetXRCSRQ(u.peerSRQ))
	}
	result(u.qp.PostSend(batch))
}

func (u *user) send(id uint64, flags ibverbs.SendFlags, at, n int) {
	u.posts(func(s *ibverbs.SendBatch) error { return s.Send(id, flags, u.mr.Sub(at, n)) })
}

// writes posts an RDMA write, and reads an RDMA read, of n bytes. The memory of
// the peer begins at remote.
func (u *user) writes(id uint64, at int, peer *user, remote, n int) {
	u.posts(func(s *ibverbs.SendBatch) error {
		return s.Write(id, peer.mr.Remote().Sub(uint64(remote), uint64(n)), ibverbs.SendSignaled, u.mr.Sub(at, n))
	})
}

func (u *user) reads(id uint64, at int, peer *user, remote, n int) {
	u.posts(func(s *ibverbs.SendBatch) error {
		return s.Read(id, peer.mr.Remote().Sub(uint64(remote), uint64(n)), ibverbs.SendSignaled, u.mr.Sub(at, n))
	})
}

// adds posts an atomic addition of 1 to a word of the peer.
func (u *user) adds(id uint64, at int, peer *user, remote int) {
	u.posts(func(s *ibverbs.SendBatch) error {
		return s.FetchAdd(id, peer.mr.Remote().Sub(uint64(remote), 8), 1, ibverbs.SendSignaled, u.mr.Sub(at, 8))
	})
}

// stores posts an atomic write of a word of the peer.
func (u *user) stores(id uint64, peer *user, remote int) {
	u.posts(func(s *ibverbs.SendBatch) error {
		return s.AtomicWrite(id, peer.mr.Remote().Sub(uint64(remote), 8), [8]byte{1}, ibverbs.SendSignaled)
	})
}

func (u *user) receive(at, n int) {
	batch := result(ibverbs.NewRecvBatch(1, 1))
	must(batch.Recv(1, u.mr.Sub(at, n)))
	result(u.qp.PostRecv(batch))
}

// share connects u and its peer through new queue pairs. That of u has a shared
// receive queue, to which share posts n receives of 64 bytes each.
func (u *user) share(peer *user, n int) {
	batch := result(ibverbs.NewRecvBatch(n, 1))
	for i := range n {
		must(batch.Recv(1, u.mr.Sub(i*64, 64)))
	}
	result(u.srq.PostRecv(batch))
	u.create(ibverbs.QPConfig{SendCQ: u.sendCQ, RecvCQ: u.recvCQ, SendQueue: 16, SRQ: u.srq})
	peer.create(ibverbs.QPConfig{SendCQ: peer.sendCQ, RecvCQ: peer.recvCQ, SendQueue: 16, RecvQueue: 16})
	connectUsers(u, peer)
}

// shareXRC is like share, with a shared receive queue that the peer names in
// its requests. The counter of u, if any, counts the messages.
func (u *user) shareXRC(peer *user, n int) {
	u.xrcd = result(u.device.OpenXRCD(ibverbs.XRCDConfig{}))
	u.shareNamed(peer, n)
	u.create(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: u.xrcd})
	if u.counter != nil {
		must(u.counter.Attach(u.qp, counter.Recvs))
	}
	peer.create(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCSend, SendCQ: peer.sendCQ, SendQueue: 16})
	connectXRC(u.qp, u.addr, peer.addr, time.Millisecond)
	connectXRC(peer.qp, peer.addr, u.addr, 0)
	must(peer.qp.ToRTS(ibverbs.RTSAttr{SendPSN: peer.addr.PSN, Timeout: time.Second, RetryCount: 5, RNRRetryCount: ibverbs.RNRRetryForever}))
}

// shareNamed creates a shared receive queue, which the peer then names, and
// posts n receives of 64 bytes each.
func (u *user) shareNamed(peer *user, n int) {
	srq := result(u.pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: 16, XRCD: u.xrcd, CQ: u.recvCQ}))
	batch := result(ibverbs.NewRecvBatch(n, 1))
	for i := range n {
		must(batch.Recv(1, u.mr.Sub(i*64, 64)))
	}
	result(srq.PostRecv(batch))
	peer.peerSRQ = result(srq.Num())
}

// connectXRC makes a queue pair for XRC ready to receive. pause is how long the
// peer waits for a receive.
func connectXRC(qp *ibverbs.QP, local, remote ibverbs.QPAddr, pause time.Duration) {
	must(qp.ToInit(ibverbs.InitAttr{Port: local.Port, Access: ibverbs.AccessRemoteWrite}))
	must(qp.ToRTR(ibverbs.RTRAttr{
		Path:    ibverbs.AHAttr{Port: local.Port, DGID: remote.GID, SGIDIndex: local.GIDIndex, HopLimit: 1},
		PathMTU: local.MTU, DestQPNum: remote.QPNum, RecvPSN: remote.PSN, MinRNRTimer: pause,
	}))
}

// window binds a window to n bytes of memory.
func (u *user) window(kind ibverbs.MWType, at, n int) *ibverbs.MW {
	mw := result(u.pd.AllocMW(kind))
	binding := ibverbs.Binding{Memory: u.mr.Sub(at, n), Access: ibverbs.AccessRemoteWrite}
	if kind == ibverbs.MWType1 {
		must(mw.Bind(u.qp, 9, ibverbs.SendSignaled, binding))
	} else {
		u.posts(func(s *ibverbs.SendBatch) error { return s.BindMW(9, mw, binding, ibverbs.SendSignaled) })
	}
	u.sent(9)
	return mw
}

// nextWC polls a queue until it has a completion.
func nextWC(cq *ibverbs.CQ) ibverbs.WC {
	wcs := make([]ibverbs.WC, 1)
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if result(cq.Poll(wcs)) == 1 {
			return wcs[0]
		}
		if time.Now().After(until) {
			panic("no completion within a minute")
		}
	}
}

// sent waits for the completion of the request id, and received for that of a
// receive.
func (u *user) sent(id uint64)     { u.completed(u.sendCQ, id) }
func (u *user) received(id uint64) { u.completed(u.recvCQ, id) }

func (u *user) completed(cq *ibverbs.CQ, id uint64) {
	wc := nextWC(cq)
	must(wc.Err())
	if wc.ID() != id {
		panic(fmt.Sprintf("the completion is that of request %d, not of %d", wc.ID(), id))
	}
}

// flushed waits for the completion of a request that failed.
func (u *user) flushed(cq *ibverbs.CQ) {
	wc := nextWC(cq)
	if wc.Err() == nil {
		panic("the request has not failed")
	}
}

// poll polls for nothing.
func (u *user) poll() {
	wcs := make([]ibverbs.WC, 1)
	result(u.recvCQ.Poll(wcs))
}

// run runs a program on a pair of queue pairs.
func run(f func(a, b *user)) {
	device := result(ibverbs.Open("soft0"))
	f(pairOfUsers(device, ibverbs.QPTypeRC, 0))
}
