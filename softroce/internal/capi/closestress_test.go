// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// maker makes objects of a context in one of several threads.
type maker struct {
	owner  *rig // whose objects the context imports
	c      *libibverbs.Context
	file   *os.File       // of an XRC domain that owner has open, too
	shared *libibverbs.Qp // queue pair of that domain
	random *rand.Rand

	pd   *libibverbs.Pd
	cq   *libibverbs.Cq
	mr   *libibverbs.Mr
	qp   *libibverbs.Qp
	xrcd *libibverbs.Xrcd
}

// keep stores a new object in to, from which others are made.
func keep[T any](to **T) func(o *T, err syscall.Errno) syscall.Errno {
	return func(o *T, err syscall.Errno) syscall.Errno {
		if err == 0 {
			*to = o
		}
		return err
	}
}

// only returns the error of a call.
func only[T any](_ T, err syscall.Errno) syscall.Errno { return err }

// make makes an object of a random kind, or changes or destroys one.
func (m *maker) make() syscall.Errno {
	buffer := uintptr(start(m.owner.memory))
	xrcd := &libibverbs.XrcdInitAttr{
		CompMask: libibverbs.IBV_XRCD_INIT_ATTR_FD | libibverbs.IBV_XRCD_INIT_ATTR_OFLAGS, Fd: int32(m.file.Fd()), Oflags: syscall.O_CREAT,
	}
	srq := &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}}
	all := []func() syscall.Errno{
		func() syscall.Errno { return keep(&m.pd)(verbs.AllocPd(m.c)) },
		func() syscall.Errno { return keep(&m.pd)(verbs.ImportPd(m.c, m.owner.pd.Handle)) },
		func() syscall.Errno {
			td, err := verbs.AllocTd(m.c, &libibverbs.TdInitAttr{})
			if err != 0 {
				return err
			}
			return only(verbs.AllocParentDomain(m.c, &libibverbs.ParentDomainInitAttr{Pd: m.pd, Td: td}))
		},
		func() syscall.Errno {
			channel, err := verbs.CreateCompChannel(m.c)
			if err != 0 {
				return err
			}
			return keep(&m.cq)(verbs.CreateCq(m.c, 4, 0, channel, 0))
		},
		func() syscall.Errno { return verbs.ResizeCq(m.cq, 1+m.random.Int32N(30)) },
		func() syscall.Errno { return verbs.DestroyCq(m.cq) },
		func() syscall.Errno {
			s, err := verbs.CreateSrq(m.pd, srq)
			if err == 0 && m.random.IntN(2) == 0 {
				return verbs.DestroySrq(s)
			}
			return err
		},
		func() syscall.Errno {
			return keep(&m.qp)(verbs.CreateQp(m.pd, &libibverbs.QpInitAttr{SendCq: m.cq, RecvCq: m.cq, QpType: libibverbs.IBV_QPT_UD}))
		},
		func() syscall.Errno { return verbs.ModifyQp(m.qp, &libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE) },
		func() syscall.Errno { return verbs.DestroyQp(m.qp) },
		func() syscall.Errno {
			var group libibverbs.Gid
			*group.Raw() = [16]byte{10: 0xFF, 11: 0xFF, 12: 224, 15: 97}
			return verbs.AttachMcast(m.qp, &group, 0)
		},
		func() syscall.Errno { return keep(&m.xrcd)(verbs.OpenXrcd(m.c, xrcd)) },
		func() syscall.Errno { return verbs.CloseXrcd(m.xrcd) },
		func() syscall.Errno {
			return keep(&m.qp)(verbs.CreateQpEx(m.c, &libibverbs.QpInitAttrEx{
				QpType: libibverbs.IBV_QPT_XRC_RECV, CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD, Xrcd: m.xrcd,
			}))
		},
		func() syscall.Errno {
			return keep(&m.qp)(verbs.OpenQp(m.c, &libibverbs.QpOpenAttr{
				CompMask: libibverbs.IBV_QP_OPEN_ATTR_NUM | libibverbs.IBV_QP_OPEN_ATTR_XRCD | libibverbs.IBV_QP_OPEN_ATTR_TYPE,
				QpNum:    m.shared.QpNum, Xrcd: m.xrcd, QpType: libibverbs.IBV_QPT_XRC_RECV,
			}))
		},
		func() syscall.Errno {
			return only(verbs.CreateSrqEx(m.c, &libibverbs.SrqInitAttrEx{
				Attr: srq.Attr, SrqType: libibverbs.IBV_SRQT_XRC, Pd: m.pd, Xrcd: m.xrcd, Cq: m.cq,
				CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD | libibverbs.IBV_SRQ_INIT_ATTR_XRCD | libibverbs.IBV_SRQ_INIT_ATTR_CQ,
			}))
		},
		func() syscall.Errno {
			return only(verbs.CreateSrqEx(m.c, &libibverbs.SrqInitAttrEx{
				Attr: srq.Attr, SrqType: libibverbs.IBV_SRQT_TM, Pd: m.pd, Cq: m.cq,
				CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD | libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM,
				TmCap:    libibverbs.TmCap{MaxNumTags: 4, MaxOps: 4},
			}))
		},
		func() syscall.Errno {
			return keep(&m.mr)(verbs.RegMr(m.pd, buffer, 4096, libibverbs.IBV_ACCESS_LOCAL_WRITE))
		},
		func() syscall.Errno { return keep(&m.mr)(verbs.ImportMr(m.pd, m.owner.mr.Handle)) },
		func() syscall.Errno { return only(verbs.RegMr(m.pd, buffer, 4096, onDemand)) },
		func() syscall.Errno { return only(verbs.AllocNullMr(m.pd)) },
		func() syscall.Errno {
			dm, err := verbs.AllocDm(m.c, &libibverbs.AllocDmAttr{Length: 64})
			if err != 0 {
				return err
			}
			return only(verbs.RegDmMr(m.pd, dm, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED))
		},
		func() syscall.Errno {
			h, err := verbs.AllocDmah(m.c, &libibverbs.DmahInitAttr{CompMask: libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH})
			if err != 0 {
				return err
			}
			return only(verbs.RegMrEx(m.pd, &libibverbs.MrInitAttr{
				CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_DMAH), Addr: start(m.owner.memory), Length: 4096, Dmah: h,
			}))
		},
		func() syscall.Errno { return only(verbs.AllocMw(m.pd, libibverbs.IBV_MW_TYPE_1)) },
		func() syscall.Errno { to := m.owner.to(); return only(verbs.CreateAh(m.pd, &to)) },
		func() syscall.Errno {
			counter, err := verbs.CreateCompCntr(m.c, &libibverbs.CompCntrInitAttr{})
			if err != 0 {
				return err
			}
			return verbs.QpAttachCompCntr(m.qp, counter, &libibverbs.QpAttachCompCntrAttr{OpMask: 1 << m.random.UintN(6)})
		},
		func() syscall.Errno {
			fd, err := syscall.Dup(int(m.owner.c.CmdFd))
			if err != nil {
				return 0
			}
			c, failure := verbs.ImportDevice(int32(fd))
			if failure != 0 {
				syscall.Close(fd)
				return failure
			}
			_, _ = verbs.ImportPd(c, m.owner.pd.Handle)
			return verbs.CloseDevice(c)
		},
	}
	return all[m.random.IntN(len(all))]()
}

// writeUntil writes to the first bytes of a region again and again.
func (r *rig) writeUntil(end <-chan struct{}, qp *libibverbs.Qp, cq *libibverbs.Cq, key uint32) {
	r.t.Helper()
	wc := alloc[libibverbs.Wc]()
	defer free(wc)
	for completions := 1; ; {
		if completions > 0 {
			*r.sge = r.part(8192, 64)
			*r.send = libibverbs.SendWr{SgList: r.sge, NumSge: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE, SendFlags: libibverbs.IBV_SEND_SIGNALED}
			rdma := r.send.Wr.Rdma()
			rdma.RemoteAddr, rdma.Rkey = uint64(uintptr(start(r.memory))), key
			var bad *libibverbs.SendWr
			require.NoError(r.t, libibverbs.PostSend(qp, r.send, &bad))
		}
		var err error
		completions, err = libibverbs.PollCq(cq, 1, wc)
		require.NoError(r.t, err)
		select {
		case <-end:
			return
		default:
		}
	}
}

// While threads make objects of all kinds, and a peer writes to memory of the
// context, another thread closes the context. Nothing of it is left.
func TestCloseWhileMaking(t *testing.T) {
	const threads, rounds = 4, 50
	outer := self().held()
	r := openRig(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer file.Close()
	x, err := r.xrcd(file, syscall.O_CREAT)
	require.NoError(t, err)
	shared := r.xrcTarget(x)
	cq := r.cq(64)
	before, files := self().held(), descriptors(t)
	for round := range rounds {
		i := r.importer()
		from := r.qp(libibverbs.IBV_QPT_RC, cq, 16)
		to := i.qp(libibverbs.IBV_QPT_RC, i.cq(4), 4)
		r.ready(from, to.QpNum)
		i.ready(to, from.QpNum)
		region, err := libibverbs.RegMr(i.pd, start(r.memory), 4096, libibverbs.IBV_ACCESS_LOCAL_WRITE|libibverbs.IBV_ACCESS_REMOTE_WRITE)
		require.NoError(t, err)
		key := region.Rkey

		var made atomic.Int32
		var all sync.WaitGroup
		ended := make(chan struct{})
		for thread := range threads {
			m := &maker{owner: r, c: i.c, file: file, shared: shared, random: rand.New(rand.NewPCG(uint64(round), uint64(thread)))}
			all.Go(func() {
				for {
					m.make()
					made.Add(1)
					select {
					case <-ended:
						return
					default:
					}
				}
			})
		}
		all.Go(func() {
			defer close(ended)
			for target := 1 + rand.N(int32(300)); made.Load() < target; {
				runtime.Gosched()
			}
			if err := verbs.CloseDevice(i.c); err != 0 {
				t.Error("close: ", err)
			}
		})
		r.writeUntil(ended, from, cq, key)
		all.Wait()
		require.NoError(t, libibverbs.DestroyQp(from))
		require.Equal(t, before, self().held(), "round %d", round)
		require.LessOrEqual(t, descriptors(t), files)
	}
	require.NoError(t, libibverbs.CloseDevice(r.c))
	require.Equal(t, outer, self().held())
}
