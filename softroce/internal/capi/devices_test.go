// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// twoDevices are the devices of a process that tests two of them.
const twoDevices = "VERBENA_DEVICES=soft0=127.0.0.1;soft1=127.0.0.2"

// rigs returns a rig of each device.
func rigs(t *testing.T) (a, b *rig) {
	t.Helper()
	for i, r := range []**rig{&a, &b} {
		c, err := verbs.OpenDevice(self().structs[i])
		require.Zero(t, err)
		*r = rigOn(t, c)
		t.Cleanup(func() { require.NoError(t, libibverbs.CloseDevice(c)) })
	}
	return a, b
}

// mine are objects of a device.
type mine struct {
	*rig
	channel *libibverbs.CompChannel
	queue   *libibverbs.Cq
	srq     *libibverbs.Srq
	pair    *libibverbs.Qp // of datagrams
	td      *libibverbs.Td
	parent  *libibverbs.Pd
	dm      *libibverbs.Dm
	dmah    *libibverbs.Dmah
	buf     *libibverbs.Buf
	inBuf   unsafe.Pointer // memory of buf
	xrcd    *libibverbs.Xrcd
	target  *libibverbs.Qp // of the type XRC_RECV
	counter *libibverbs.CompCntr
	address *libibverbs.Ah
	window  *libibverbs.Mw
}

func newMine(t *testing.T, r *rig, file *os.File) *mine {
	t.Helper()
	m := &mine{rig: r, queue: r.cq(64), address: r.ah()}
	var err syscall.Errno
	must := func() {
		t.Helper()
		require.Zero(t, err)
	}
	m.channel, err = verbs.CreateCompChannel(r.c)
	must()
	m.srq, err = verbs.CreateSrq(r.pd, &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 4, MaxSge: 1}})
	must()
	m.pair = r.qp(libibverbs.IBV_QPT_UD, m.queue, 4)
	m.td, err = verbs.AllocTd(r.c, &libibverbs.TdInitAttr{})
	must()
	m.parent, err = verbs.AllocParentDomain(r.c, &libibverbs.ParentDomainInitAttr{Pd: r.pd, Td: m.td})
	must()
	m.dm, err = verbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: 64})
	must()
	m.dmah, err = verbs.AllocDmah(r.c, &libibverbs.DmahInitAttr{CompMask: libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH})
	must()
	var memory unsafe.Pointer
	memory, err = verbs.AllocBuf(r.pd, 4096, &m.buf)
	must()
	m.inBuf = memory
	var failed error
	m.xrcd, failed = r.xrcd(file, syscall.O_CREAT)
	require.NoError(t, failed)
	m.target = r.xrcTarget(m.xrcd)
	m.counter, err = verbs.CreateCompCntr(r.c, &libibverbs.CompCntrInitAttr{})
	must()
	m.window, err = verbs.AllocMw(r.pd, libibverbs.IBV_MW_TYPE_1)
	must()
	t.Cleanup(func() { verbs.FreeBuf(m.buf) })
	return m
}

// boundID calls f with an ID that has the device with the address.
func boundID(t *testing.T, address string, f func(id *librdmacm.CmId)) {
	t.Helper()
	id := newProgram(t).id(tcp)
	require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.MustParseAddrPort(address+":0"))))
	f(id)
	destroy(t, id)
}

// withTwo returns calls of all functions that take two objects, with those of
// one and other.
func withTwo(t *testing.T, one, other *mine) map[string]func() syscall.Errno {
	const lkey = libibverbs.IBV_ACCESS_LOCAL_WRITE
	srq := libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}
	cap := libibverbs.QpCap{MaxSendWr: 1, MaxRecvWr: 1, MaxSendSge: 1, MaxRecvSge: 1}
	qp := func(a libibverbs.QpInitAttrEx) syscall.Errno {
		if a.QpType == 0 {
			a.QpType = libibverbs.IBV_QPT_RC
		}
		if a.Pd != nil {
			a.CompMask |= libibverbs.IBV_QP_INIT_ATTR_PD
		}
		a.Cap = cap
		return only(verbs.CreateQpEx(one.c, &a))
	}
	createSRQ := func(kind libibverbs.SrqType, pd *libibverbs.Pd, x *libibverbs.Xrcd, cq *libibverbs.Cq) syscall.Errno {
		mask := map[libibverbs.SrqType]libibverbs.SrqInitAttrMask{
			libibverbs.IBV_SRQT_XRC: libibverbs.IBV_SRQ_INIT_ATTR_XRCD | libibverbs.IBV_SRQ_INIT_ATTR_CQ,
			libibverbs.IBV_SRQT_TM:  libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM,
		}[kind]
		return only(verbs.CreateSrqEx(one.c, &libibverbs.SrqInitAttrEx{
			Attr: srq, SrqType: kind, Pd: pd, Xrcd: x, Cq: cq, TmCap: libibverbs.TmCap{MaxNumTags: 4, MaxOps: 4},
			CompMask: mask | libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD,
		}))
	}
	open := func(x *libibverbs.Xrcd, number uint32) syscall.Errno {
		return only(verbs.OpenQp(one.c, &libibverbs.QpOpenAttr{
			CompMask: libibverbs.IBV_QP_OPEN_ATTR_NUM | libibverbs.IBV_QP_OPEN_ATTR_XRCD | libibverbs.IBV_QP_OPEN_ATTR_TYPE,
			QpNum:    number, Xrcd: x, QpType: libibverbs.IBV_QPT_XRC_RECV,
		}))
	}
	extended := func(mask libibverbs.MrInitAttrMask, a libibverbs.MrInitAttr) syscall.Errno {
		a.CompMask, a.Length = uint64(mask|libibverbs.IBV_REG_MR_MASK_ADDR), 4096
		return only(verbs.RegMrEx(one.pd, &a))
	}
	withID := func(f func(id *librdmacm.CmId) syscall.Errno) (err syscall.Errno) {
		boundID(t, "127.0.0.1", func(id *librdmacm.CmId) { err = f(id) })
		return err
	}
	cmQP := func(pd *libibverbs.Pd, a libibverbs.QpInitAttr) syscall.Errno {
		a.Cap, a.QpType = cap, libibverbs.IBV_QPT_RC
		return withID(func(id *librdmacm.CmId) syscall.Errno { return createCMQP(id, pd, &a) })
	}
	return map[string]func() syscall.Errno{
		"ibv_create_cq, channel": func() syscall.Errno { return only(verbs.CreateCq(one.c, 4, 0, other.channel, 0)) },
		"ibv_create_cq_ex, channel": func() syscall.Errno {
			return only(verbs.CreateCqEx(one.c, &libibverbs.CqInitAttrEx{Cqe: 4, Channel: other.channel}))
		},
		"ibv_create_cq_ex, parent domain": func() syscall.Errno {
			return only(verbs.CreateCqEx(one.c, &libibverbs.CqInitAttrEx{
				Cqe: 4, CompMask: libibverbs.IBV_CQ_INIT_ATTR_MASK_PD, ParentDomain: other.parent,
			}))
		},

		"ibv_create_srq_ex, PD":                func() syscall.Errno { return createSRQ(libibverbs.IBV_SRQT_BASIC, other.pd, nil, nil) },
		"ibv_create_srq_ex, parent domain":     func() syscall.Errno { return createSRQ(libibverbs.IBV_SRQT_BASIC, other.parent, nil, nil) },
		"ibv_create_srq_ex, XRC domain":        func() syscall.Errno { return createSRQ(libibverbs.IBV_SRQT_XRC, one.pd, other.xrcd, one.queue) },
		"ibv_create_srq_ex, XRC, CQ":           func() syscall.Errno { return createSRQ(libibverbs.IBV_SRQT_XRC, one.pd, one.xrcd, other.queue) },
		"ibv_create_srq_ex, matching tags, CQ": func() syscall.Errno { return createSRQ(libibverbs.IBV_SRQT_TM, one.pd, nil, other.queue) },

		"ibv_create_qp, send CQ": func() syscall.Errno {
			return only(verbs.CreateQp(one.pd, &libibverbs.QpInitAttr{SendCq: other.queue, RecvCq: one.queue, QpType: libibverbs.IBV_QPT_RC}))
		},
		"ibv_create_qp, receive CQ": func() syscall.Errno {
			return only(verbs.CreateQp(one.pd, &libibverbs.QpInitAttr{SendCq: one.queue, RecvCq: other.queue, QpType: libibverbs.IBV_QPT_RC}))
		},
		"ibv_create_qp, SRQ": func() syscall.Errno {
			return only(verbs.CreateQp(one.pd, &libibverbs.QpInitAttr{SendCq: one.queue, RecvCq: one.queue, Srq: other.srq, QpType: libibverbs.IBV_QPT_RC}))
		},
		"ibv_create_qp_ex, PD": func() syscall.Errno {
			return qp(libibverbs.QpInitAttrEx{Pd: other.pd, SendCq: one.queue, RecvCq: one.queue})
		},
		"ibv_create_qp_ex, parent domain": func() syscall.Errno {
			return qp(libibverbs.QpInitAttrEx{Pd: other.parent, SendCq: one.queue, RecvCq: one.queue})
		},
		"ibv_create_qp_ex, all but the context": func() syscall.Errno {
			return qp(libibverbs.QpInitAttrEx{Pd: other.pd, SendCq: other.queue, RecvCq: other.queue})
		},
		"ibv_create_qp_ex, XRC initiator, CQ": func() syscall.Errno {
			return qp(libibverbs.QpInitAttrEx{Pd: one.pd, SendCq: other.queue, QpType: libibverbs.IBV_QPT_XRC_SEND})
		},
		"ibv_create_qp_ex, XRC domain": func() syscall.Errno {
			return qp(libibverbs.QpInitAttrEx{CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD, Xrcd: other.xrcd, QpType: libibverbs.IBV_QPT_XRC_RECV})
		},
		"ibv_create_qp_ex, XRC target, PD": func() syscall.Errno {
			return qp(libibverbs.QpInitAttrEx{CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD, Xrcd: one.xrcd, Pd: other.pd, QpType: libibverbs.IBV_QPT_XRC_RECV})
		},
		"ibv_open_qp, XRC domain": func() syscall.Errno { return open(other.xrcd, one.target.QpNum) },
		"ibv_open_qp, queue pair": func() syscall.Errno { return open(one.xrcd, other.target.QpNum) }, // the domains have the same file
		"ibv_open_qp, both":       func() syscall.Errno { return open(other.xrcd, other.target.QpNum) },

		"ibv_alloc_parent_domain, PD": func() syscall.Errno {
			return only(verbs.AllocParentDomain(one.c, &libibverbs.ParentDomainInitAttr{Pd: other.pd}))
		},
		"ibv_alloc_parent_domain, thread domain": func() syscall.Errno {
			return only(verbs.AllocParentDomain(one.c, &libibverbs.ParentDomainInitAttr{Pd: one.pd, Td: other.td}))
		},
		"ibv_qp_attach_comp_cntr": func() syscall.Errno {
			return verbs.QpAttachCompCntr(one.pair, other.counter, &libibverbs.QpAttachCompCntrAttr{OpMask: libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND})
		},

		"ibv_reg_dm_mr": func() syscall.Errno {
			return only(verbs.RegDmMr(one.pd, other.dm, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED))
		},
		"ibv_reg_buf_mr": func() syscall.Errno { return only(verbs.RegBufMr(one.pd, other.buf, uintptr(other.inBuf), 4096, lkey)) },
		"ibv_reg_mr_ex, buffer": func() syscall.Errno {
			return extended(libibverbs.IBV_REG_MR_MASK_BUF, libibverbs.MrInitAttr{Buf: other.buf, Addr: other.inBuf})
		},
		"ibv_reg_mr_ex, DMA handle": func() syscall.Errno {
			return extended(libibverbs.IBV_REG_MR_MASK_DMAH, libibverbs.MrInitAttr{Dmah: other.dmah, Addr: start(one.memory)})
		},
		"ibv_rereg_mr": func() syscall.Errno {
			_, err := verbs.ReregMr(one.mr, libibverbs.IBV_REREG_MR_CHANGE_PD, other.pd, 0, 0, 0)
			return err
		},
		"ibv_import_pd": func() syscall.Errno { return only(verbs.ImportPd(one.c, other.pd.Handle)) },
		"ibv_import_mr": func() syscall.Errno { return only(verbs.ImportMr(one.pd, other.mr.Handle)) },
		"ibv_import_dm": func() syscall.Errno { return only(verbs.ImportDm(one.c, other.dm.Handle)) },

		"rdma_create_qp, PD":         func() syscall.Errno { return cmQP(other.pd, libibverbs.QpInitAttr{}) },
		"rdma_create_qp, send CQ":    func() syscall.Errno { return cmQP(one.pd, libibverbs.QpInitAttr{SendCq: other.queue}) },
		"rdma_create_qp, receive CQ": func() syscall.Errno { return cmQP(one.pd, libibverbs.QpInitAttr{RecvCq: other.queue}) },
		"rdma_create_qp, SRQ":        func() syscall.Errno { return cmQP(one.pd, libibverbs.QpInitAttr{Srq: other.srq}) },
		"rdma_create_srq": func() syscall.Errno {
			return withID(func(id *librdmacm.CmId) syscall.Errno {
				return cm.CreateSrq(id, other.pd, &libibverbs.SrqInitAttr{Attr: srq})
			})
		},
	}
}

// Every function that takes two objects refuses those of two devices, and makes
// nothing.
func TestFunctionsWithObjectsOfTwoDevices(t *testing.T) {
	if !process.Alone(t, twoDevices) {
		return
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer file.Close()
	var one, other *mine
	// The contexts are those of IDs, since queue pairs of these have no others.
	boundID(t, "127.0.0.1", func(first *librdmacm.CmId) {
		boundID(t, "127.0.0.2", func(second *librdmacm.CmId) {
			one, other = newMine(t, rigOn(t, first.Verbs), file), newMine(t, rigOn(t, second.Verbs), file)
		})
	})
	before := self().held()
	for name, call := range withTwo(t, one, other) {
		require.Equal(t, syscall.EINVAL, call(), name)
		require.Equal(t, before, self().held(), name)
	}
	for name, call := range withTwo(t, one, one) {
		require.Zero(t, call(), name)
	}
}

// Requests that name an object of another device complete with the status that
// the specification has for an unknown one.
func TestRequestsWithObjectsOfTwoDevices(t *testing.T) {
	if !process.Alone(t, twoDevices) {
		return
	}
	a, b := rigs(t)
	cqA, cqB := a.cq(64), b.cq(64)

	// connected returns connected queue pairs of the two devices.
	connected := func() (from, to *libibverbs.Qp) {
		from, to = a.qp(libibverbs.IBV_QPT_RC, cqA, 4), b.qp(libibverbs.IBV_QPT_RC, cqB, 4)
		a.readyTo(from, b, to.QpNum)
		b.readyTo(to, a, from.QpNum)
		return from, to
	}
	post := func(qp *libibverbs.Qp, op libibverbs.WrOpcode, part libibverbs.Sge, key uint32) libibverbs.WcStatus {
		*a.sge = part
		*a.send = libibverbs.SendWr{SgList: a.sge, NumSge: 1, Opcode: op, SendFlags: libibverbs.IBV_SEND_SIGNALED}
		rdma := a.send.Wr.Rdma()
		rdma.RemoteAddr, rdma.Rkey = b.part(4096, 8).Addr, key
		var bad *libibverbs.SendWr
		require.NoError(t, libibverbs.PostSend(qp, a.send, &bad))
		return a.poll(cqA, 1)[0].Status
	}
	for name, test := range map[string]struct {
		op   libibverbs.WrOpcode
		part libibverbs.Sge
		key  uint32
		want libibverbs.WcStatus
	}{
		"right":             {libibverbs.IBV_WR_RDMA_WRITE, a.part(0, 8), b.mr.Rkey, libibverbs.IBV_WC_SUCCESS},
		"own memory":        {libibverbs.IBV_WR_RDMA_WRITE, b.part(0, 8), b.mr.Rkey, libibverbs.IBV_WC_LOC_PROT_ERR},
		"peer's memory":     {libibverbs.IBV_WR_RDMA_WRITE, a.part(0, 8), a.mr.Rkey, libibverbs.IBV_WC_REM_ACCESS_ERR},
		"read into another": {libibverbs.IBV_WR_RDMA_READ, b.part(0, 8), b.mr.Rkey, libibverbs.IBV_WC_LOC_PROT_ERR},
		"read from another": {libibverbs.IBV_WR_RDMA_READ, a.part(0, 8), a.mr.Rkey, libibverbs.IBV_WC_REM_ACCESS_ERR},
	} {
		from, to := connected()
		require.Equal(t, test.want, post(from, test.op, test.part, test.key), name)
		require.NoError(t, libibverbs.DestroyQp(from))
		require.NoError(t, libibverbs.DestroyQp(to))
	}

	t.Run("receive into memory of another device", func(t *testing.T) {
		from, to := connected()
		b.postRecv(to, a.part(0, 8))
		require.Equal(t, libibverbs.IBV_WC_REM_OP_ERR, post(from, libibverbs.IBV_WR_SEND, a.part(0, 8), 0))
		require.Equal(t, libibverbs.IBV_WC_LOC_PROT_ERR, b.poll(cqB, 1)[0].Status)
	})

	t.Run("address handle", func(t *testing.T) {
		datagrams, target := a.qp(libibverbs.IBV_QPT_UD, cqA, 4), b.qp(libibverbs.IBV_QPT_UD, cqB, 4)
		a.ready(datagrams, 0)
		b.ready(target, 0)
		b.postRecv(target, b.part(0, 4096))
		for name, handle := range map[string]*libibverbs.Ah{"to its own device": b.ah(), "to the queue pair's device": b.ahTo(a)} {
			a.postSend(datagrams, a.part(0, 8), handle, target.QpNum)
			require.Equal(t, libibverbs.IBV_WC_LOC_QP_OP_ERR, a.poll(cqA, 1)[0].Status, name)
			a.bring(datagrams, 0, libibverbs.IBV_QPS_RESET)
			a.ready(datagrams, 0)
		}
		a.postSend(datagrams, a.part(0, 8), a.ahTo(b), target.QpNum)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, a.poll(cqA, 1)[0].Status)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, b.poll(cqB, 1)[0].Status)
	})

	for name, test := range map[string]struct {
		window, region *rig
		want           libibverbs.WcStatus
	}{
		"window and region of the queue pair's device": {a, a, libibverbs.IBV_WC_SUCCESS},
		"window":            {b, a, libibverbs.IBV_WC_MW_BIND_ERR},
		"region":            {a, b, libibverbs.IBV_WC_MW_BIND_ERR},
		"window and region": {b, b, libibverbs.IBV_WC_MW_BIND_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			qp, _ := connected()
			window, err := verbs.AllocMw(test.window.pd, libibverbs.IBV_MW_TYPE_2)
			require.Zero(t, err)
			region, err := verbs.RegMr(test.region.pd, uintptr(start(a.memory)), 4096, libibverbs.IBV_ACCESS_MW_BIND|libibverbs.IBV_ACCESS_LOCAL_WRITE)
			require.Zero(t, err)
			*a.send = libibverbs.SendWr{Opcode: libibverbs.IBV_WR_BIND_MW, SendFlags: libibverbs.IBV_SEND_SIGNALED}
			bind := a.send.BindMw()
			bind.Mw, bind.Rkey = window, window.Rkey
			bind.BindInfo.Mr, bind.BindInfo.Addr, bind.BindInfo.Length = region, a.part(0, 8).Addr, 8
			bind.BindInfo.MwAccessFlags = libibverbs.IBV_ACCESS_REMOTE_READ
			var bad *libibverbs.SendWr
			require.NoError(t, libibverbs.PostSend(qp, a.send, &bad))
			require.Equal(t, test.want, a.poll(cqA, 1)[0].Status)
		})
	}
}

// A device is imported as the one that it is, and its objects only there.
func TestImportsOfTwoDevices(t *testing.T) {
	if !process.Alone(t, twoDevices) {
		return
	}
	a, b := rigs(t)
	for _, r := range []*rig{a, b} {
		i := r.importer()
		require.Same(t, r.c.Device, i.c.Device)
		from, to := r.qp(libibverbs.IBV_QPT_RC, r.cq(4), 4), i.qp(libibverbs.IBV_QPT_RC, i.cq(4), 4)
		r.ready(from, to.QpNum)
		i.ready(to, from.QpNum)
		i.postRecv(to, i.part(0, 8))
		r.postSend(from, r.part(8, 8), nil, 0)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(from.SendCq, 1)[0].Status)
		other := map[*rig]*rig{a: b, b: a}[r]
		require.Equal(t, syscall.EINVAL, only(verbs.ImportPd(i.c, other.pd.Handle)))
		require.Equal(t, syscall.EINVAL, only(verbs.ImportMr(i.pd, other.mr.Handle)))
		require.NoError(t, libibverbs.CloseDevice(i.c))
	}
}

// Objects of two devices leave nothing behind.
func TestTwoDevicesLeaveNothing(t *testing.T) {
	if !process.Alone(t, twoDevices) {
		return
	}
	for name, test := range map[string]func(*testing.T){
		"misuse": TestMisuse, "close while making": TestCloseWhileMaking, "counter": TestCounterOfSharedQueuePair, "closing contexts": TestContextsCloseAtOnce,
	} {
		t.Run(name, test)
	}
	before, files := self().held(), descriptors(t)
	for i := range self().structs {
		for range 3 {
			var contexts []*libibverbs.Context
			for _, device := range []int{i, 1 - i} {
				c, err := verbs.OpenDevice(self().structs[device])
				require.Zero(t, err)
				contexts = append(contexts, c)
			}
			file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
			require.NoError(t, err)
			t.Run("objects", func(t *testing.T) {
				for _, c := range contexts {
					newMine(t, rigOn(t, c), file)
				}
			})
			for _, c := range contexts {
				require.Zero(t, verbs.CloseDevice(c))
			}
			require.NoError(t, file.Close())
			require.Equal(t, before, self().held())
			require.LessOrEqual(t, descriptors(t), files)
		}
	}
}
