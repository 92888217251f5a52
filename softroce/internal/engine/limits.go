// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Limits are what a device has of everything that devices differ in. Largest
// returns the largest.
type Limits struct {
	SGE         uint32 // segments of a work request
	ReadSGE     uint32 // segments of an RDMA read
	Inline      uint32 // bytes of inline data in a request
	Reads       uint32 // RDMA reads, atomics, FLUSHes and ATOMIC WRITEs in flight on a queue pair, in each direction
	WR          uint32 // work requests in a send or receive queue
	SRQWR       uint32 // receives in a shared receive queue
	CQE         uint32 // completions in a completion queue
	QPs         uint32 // queue pairs; the range of their numbers may limit them further
	CQs         uint32
	SRQs        uint32 // shared receive queues; 0: creating one fails with EOPNOTSUPP
	Tags        uint32 // receives in a tag list; 0: no shared receive queue matches tags
	PDs         uint32
	MRs         uint32
	MWs         uint32 // memory windows; 0: creating one fails with EOPNOTSUPP
	AHs         uint32
	Groups      uint32         // multicast groups
	DM          uint32         // bytes of device memory; 0: allocating some fails with EOPNOTSUPP
	ODP         uint32         // memory that is paged on demand; 0: none; 1: of regions; 2: also of the whole address space
	NullMR      bool           // whether there are null regions
	MTU         libibverbs.Mtu // largest MTU
	Atomics     bool           // whether there are atomic operations
	Flush       bool           // whether there are FLUSHes
	AtomicWrite bool           // whether there are ATOMIC WRITEs
	Imm         bool           // whether messages and RDMA writes may have immediate data
	RC, UC, UD  bool           // whether there are queue pairs of these types
	XRC         bool           // whether there are extended reliable connections, which also need SRQs
	IWARP       bool           // whether the device reports iWARP, and the memory of an RDMA read needs remote write access
	ClientFirst bool           // whether the side that accepts a connection may send only after it has received

	Counters      uint32 // completion counters; 0: creating one fails with EOPNOTSUPP
	ParentDomains bool   // whether there are thread domains and parent domains
	Imports       bool   // whether contexts, protection domains and regions can be imported
	Pacing        bool   // whether the rates of connected queue pairs can be limited
	RNR           bool   // whether a message without a receive is sent again; otherwise it ends the connection
	Solicited     bool   // whether a completion queue can be armed for solicited completions only
	Query         uint32 // 0: queue pairs cannot be queried; 1: only attributes that datagrams have, in a query of these alone; 2: all
	Late          uint32 // what becomes of requests that are posted in the error state: 0: refused; 1: never completed; 2: flushed
}

// Largest returns the limits of the largest device.
func Largest() Limits {
	return Limits{
		SGE: maxSGE, ReadSGE: maxSGE, Inline: maxInline, Reads: maxRDAtomic, WR: maxWR, SRQWR: maxSRQWR, CQE: maxCQE,
		QPs: 1 << 24, CQs: maxCQs, SRQs: maxSRQs, Tags: maxTags, PDs: maxPDs, MRs: maxMRs, MWs: maxMWs, AHs: maxAHs, Groups: maxGroups,
		DM: maxDM, ODP: 2, NullMR: true,
		MTU: libibverbs.IBV_MTU_4096, Atomics: true, Flush: true, AtomicWrite: true, Imm: true, RC: true, UC: true, UD: true, XRC: true,
		Counters: maxCounters, ParentDomains: true, Imports: true, Pacing: true,
		RNR: true, Solicited: true, Query: 2, Late: 2,
	}
}

// Limits returns the device's limits.
func (d *Device) Limits() Limits { return d.limits }

// capabilities returns the device's capability flags.
// IBV_DEVICE_MEM_MGT_EXTENSIONS announces only requests that invalidate a key,
// as C's API has no other memory management extensions.
func (l *Limits) capabilities() libibverbs.DeviceCapFlags {
	flags := libibverbs.IBV_DEVICE_CURR_QP_STATE_MOD | libibverbs.IBV_DEVICE_PORT_ACTIVE_EVENT |
		libibverbs.IBV_DEVICE_SYS_IMAGE_GUID | libibverbs.IBV_DEVICE_RC_RNR_NAK_GEN
	if l.SRQs > 0 {
		flags |= libibverbs.IBV_DEVICE_SRQ_RESIZE
	}
	if l.xrc() {
		flags |= libibverbs.IBV_DEVICE_XRC
	}
	if l.MWs > 0 {
		flags |= libibverbs.IBV_DEVICE_MEM_WINDOW | libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS | libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B
	}
	return flags
}

// Values of IBV_DEVICE_FLUSH_GLOBAL, IBV_DEVICE_FLUSH_PERSISTENT and
// IBV_DEVICE_ATOMIC_WRITE, which only device_cap_flags_ex of struct
// ibv_device_attr_ex has.
const (
	capFlushGlobal     = 1 << 38
	capFlushPersistent = 1 << 39
	capAtomicWrite     = 1 << 40
)

// capabilitiesEx returns the device's capability flags with those that
// capabilities has no room for.
func (d *Device) capabilitiesEx() uint64 {
	flags := uint64(d.limits.capabilities()) | d.flushCapabilities()
	if d.limits.has(libibverbs.IBV_WR_ATOMIC_WRITE) {
		flags |= capAtomicWrite
	}
	return flags
}

// flushCapabilities returns the capability flags of FLUSH.
func (d *Device) flushCapabilities() uint64 {
	switch {
	case !d.limits.has(libibverbs.IBV_WR_FLUSH):
		return 0
	case d.config.Persist == nil:
		return capFlushGlobal
	}
	return capFlushGlobal | capFlushPersistent
}

// FlushAccess returns the access flags of FLUSH that regions, windows and queue
// pairs of the device may have.
func (d *Device) FlushAccess() (flags libibverbs.AccessFlags) {
	has := d.flushCapabilities()
	if has&capFlushGlobal != 0 {
		flags |= libibverbs.IBV_ACCESS_FLUSH_GLOBAL
	}
	if has&capFlushPersistent != 0 {
		flags |= libibverbs.IBV_ACCESS_FLUSH_PERSISTENT
	}
	return flags
}

// xrc reports whether the device has extended reliable connections.
func (l *Limits) xrc() bool { return l.XRC && l.SRQs > 0 }

// srqWR returns the largest number of receives in a shared receive queue.
func (l *Limits) srqWR() uint32 {
	if l.SRQs == 0 {
		return 0
	}
	return l.SRQWR
}

// srqSGE returns the largest number of segments of such a receive.
func (l *Limits) srqSGE() uint32 {
	if l.SRQs == 0 {
		return 0
	}
	return l.SGE
}

// odpCaps returns what the device says of on-demand paging.
func (l *Limits) odpCaps() (c libibverbs.OdpCaps) {
	if l.ODP == 0 {
		return c
	}
	c.GeneralCaps = uint64(libibverbs.IBV_ODP_SUPPORT)
	if l.ODP > 1 {
		c.GeneralCaps |= uint64(libibverbs.IBV_ODP_SUPPORT_IMPLICIT)
	}
	messages := libibverbs.IBV_ODP_SUPPORT_SEND | libibverbs.IBV_ODP_SUPPORT_RECV
	if l.SRQs > 0 {
		messages |= libibverbs.IBV_ODP_SUPPORT_SRQ_RECV
	}
	rc := messages | libibverbs.IBV_ODP_SUPPORT_WRITE
	if l.has(libibverbs.IBV_WR_RDMA_READ) {
		rc |= libibverbs.IBV_ODP_SUPPORT_READ
	}
	if l.has(libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD) {
		rc |= libibverbs.IBV_ODP_SUPPORT_ATOMIC
	}
	if l.has(libibverbs.IBV_WR_FLUSH) {
		rc |= libibverbs.IBV_ODP_SUPPORT_FLUSH
	}
	if l.has(libibverbs.IBV_WR_ATOMIC_WRITE) {
		rc |= libibverbs.IBV_ODP_SUPPORT_ATOMIC_WRITE
	}
	c.PerTransportCaps.RcOdpCaps = rc
	if l.UC {
		c.PerTransportCaps.UcOdpCaps = messages | libibverbs.IBV_ODP_SUPPORT_WRITE
	}
	if l.UD {
		c.PerTransportCaps.UdOdpCaps = messages
	}
	return c
}

// xrcODPCaps returns what the device says of on-demand paging with XRC.
func (l *Limits) xrcODPCaps() libibverbs.OdpTransportCapBits {
	if !l.xrc() {
		return 0
	}
	return l.odpCaps().PerTransportCaps.RcOdpCaps
}

// atomicCap returns what the device says of its atomic operations.
func (l *Limits) atomicCap() libibverbs.AtomicCap {
	if l.has(libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD) {
		return libibverbs.IBV_ATOMIC_HCA
	}
	return libibverbs.IBV_ATOMIC_NONE
}

// has reports whether the device has an operation, apart from whether queue
// pairs of a type have it.
func (l *Limits) has(op libibverbs.WrOpcode) bool {
	switch op {
	case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return l.Atomics && l.Reads > 0
	case libibverbs.IBV_WR_FLUSH:
		return l.Flush && l.Reads > 0
	case libibverbs.IBV_WR_ATOMIC_WRITE:
		return l.AtomicWrite && l.Reads > 0
	case libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_SEND_WITH_IMM:
		return l.Imm
	case libibverbs.IBV_WR_BIND_MW, libibverbs.IBV_WR_LOCAL_INV, libibverbs.IBV_WR_SEND_WITH_INV:
		return l.MWs > 0
	case libibverbs.IBV_WR_RDMA_READ:
		return l.Reads > 0
	}
	return true
}

// Lacks returns a mask of the opcodes that no queue pair of the device can
// send: bit n stands for the opcode n.
func (l *Limits) Lacks() (mask uint32) {
	for op := range wcOpcodes {
		if !l.has(libibverbs.WrOpcode(op)) {
			mask |= 1 << op
		}
	}
	return mask
}

// sendOps returns the flags of the operations that the device has, and that
// ibv_wr_* functions may post to queue pairs of a type. It returns EOPNOTSUPP
// for types that the device lacks, and EINVAL for those that do not exist.
func (l *Limits) sendOps(kind libibverbs.QpType) (libibverbs.QpCreateSendOpsFlags, error) {
	var ops libibverbs.QpCreateSendOpsFlags
	there := true
	switch kind {
	case libibverbs.IBV_QPT_RC:
		ops, there = rcOps, l.RC
	case libibverbs.IBV_QPT_UC:
		ops, there = ucOps, l.UC
	case libibverbs.IBV_QPT_UD:
		ops, there = udOps, l.UD
	case libibverbs.IBV_QPT_XRC_SEND:
		ops, there = rcOps, l.xrc()
	case libibverbs.IBV_QPT_XRC_RECV:
		there = l.xrc() // it sends nothing
	case libibverbs.IBV_QPT_RAW_PACKET, libibverbs.IBV_QPT_DRIVER:
		there = false
	default:
		return 0, syscall.EINVAL
	}
	if !there {
		return 0, syscall.EOPNOTSUPP
	}
	for op, flag := range opFlags {
		if !l.has(op) {
			ops &^= flag
		}
	}
	return ops, nil
}

// opFlags has the flag of each operation that a device may lack.
var opFlags = map[libibverbs.WrOpcode]libibverbs.QpCreateSendOpsFlags{
	libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:  libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	libibverbs.IBV_WR_SEND_WITH_IMM:        libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM,
	libibverbs.IBV_WR_RDMA_READ:            libibverbs.IBV_QP_EX_WITH_RDMA_READ,
	libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:   libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD: libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	libibverbs.IBV_WR_FLUSH:                libibverbs.IBV_QP_EX_WITH_FLUSH,
	libibverbs.IBV_WR_ATOMIC_WRITE:         libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE,
	libibverbs.IBV_WR_LOCAL_INV:            libibverbs.IBV_QP_EX_WITH_LOCAL_INV,
	libibverbs.IBV_WR_BIND_MW:              libibverbs.IBV_QP_EX_WITH_BIND_MW,
	libibverbs.IBV_WR_SEND_WITH_INV:        libibverbs.IBV_QP_EX_WITH_SEND_WITH_INV,
}

// HearFirst makes requests of the queue pair fail until the peer's first
// request has arrived, if the device demands that.
func (q *QP) HearFirst() { q.responder.unheard = q.device.limits.ClientFirst }
