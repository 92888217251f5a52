// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Limits of the largest device.
const (
	maxPDs       = 1 << 16
	maxMRs       = 1 << 17
	maxMWs       = 1 << 16
	maxAHs       = 1 << 16
	maxCQs       = 1 << 16
	maxCQE       = 1<<22 - 1
	maxSRQs      = 1 << 16
	maxXRCDs     = 1 << 16
	maxWR        = 1 << 14 // work requests in a send or receive queue
	maxSRQWR     = 1 << 16
	maxSGE       = 32
	maxInline    = 1024
	maxRDAtomic  = 128     // RDMA reads, atomics, FLUSHes and ATOMIC WRITEs in flight on a queue pair, in each direction
	maxCounters  = 1 << 16 // completion counters
	maxGroups    = 1 << 13
	maxGroupQPs  = 256 // queue pairs in one multicast group
	maxMessage   = 1 << 31
	gidTableSize = 256
	defaultPKey  = 0xFFFF

	maxDM     = 1 << 20 // bytes of device memory
	maxMRSize = math.MaxInt64
	pageSize  = 4096
)

// Config configures a device. The functions in it are called during calls of
// the device's methods, in the same goroutine. They must not call these
// methods.
type Config struct {
	// Random chooses queue pair numbers and memory keys, which peers must
	// not be able to guess. If it is nil, the device uses a
	// cryptographically strong generator with a random seed.
	Random *rand.Rand
	// Hostile, if not nil, makes the device behave as badly as the
	// specification allows, at random: a queue pair sends only a few
	// packets at a time, and a receiver sometimes reports that it is not
	// ready.
	Hostile *rand.Rand
	// FirstQPN is the first number of the range from which the device
	// chooses queue pair numbers. The range must not include 0, 1 and
	// 0xFFFFFF.
	FirstQPN uint32
	// QPNs is the number of queue pair numbers in the range that begins
	// with FirstQPN. If QPNs is 0, the range is 65536 numbers from 16 on.
	QPNs uint32
	// MaxQPs limits the number of queue pairs. 0 means QPNs.
	MaxQPs uint32
	// Limits are the limits of the device. If it is nil, they are the
	// largest.
	Limits *Limits
	GUID   uint64
	MTU    libibverbs.Mtu // the port's MTU, which Limits.MTU may reduce; 0 means 4096 bytes
	// Window limits the packets of a reliable connection that are not
	// acknowledged yet. 0 means 256. If Window is not 0, the device
	// requests an RDMA read in parts, whose responses have at most Window
	// packets each. If it is 0, the device requests the read as a whole.
	Window int
	Start  time.Time // absolute time that corresponds to the time 0 of Advance

	// ECN makes the packets of connections permit routers to mark them. The
	// receiver of a marked packet notifies the sender, which reduces its
	// rate. ECN must not be set if the network uses the two ECN bits in
	// another way.
	ECN bool

	// FindQP returns the queue pair with a number, of this device or of
	// another one of the process, or nil. If FindQP is nil, the process has
	// no other device.
	FindQP func(number uint32) *QP
	// Persist makes what was written to memory survive a loss of power. It
	// carries out FLUSHes with IBV_FLUSH_PERSISTENT. If it is nil, the
	// device has none.
	Persist func(memory []byte) error

	// Packets is the pool from which packets are taken and to which they
	// return. If it is nil, the device creates one.
	Packets *PacketPool
	// Copies has the large copies that are left to the owner. If it is nil,
	// the device makes all copies itself.
	Copies *Copies
	// Send sends a packet, and takes ownership of it. It calls
	// PacketPool.Put for a packet that is not delivered. The payload
	// consists of slices of the program's memory.
	//
	// If Send delivers a datagram or a packet of an unreliable connection
	// after it has returned, it must copy the payload. For a packet of a
	// reliable connection, it need not: the program must keep the memory
	// until the message is acknowledged. If the program unmaps the memory
	// earlier, Receive treats the packet as lost.
	Send func(p *wire.Packet)
	// Merges reports whether nothing but the receiving device sees packets
	// to this process and, if LongPacket is not 0, to others. A packet may
	// then stand for several (wire.Packet.More). If Merges is nil, no packet
	// does.
	Merges func() bool
	// LongPacket is the number of payload bytes that a packet to another
	// process may have if it stands for several. If it is 0, such packets
	// stand for themselves.
	LongPacket int
	// Room reports whether the network has room for packets to a queue
	// pair. While it has none, a reliable connection that waits for
	// acknowledgements sends nothing. Device.Resume must be called when
	// there may be room again. If Room is nil, there is always room.
	Room func(qpn uint32) bool
	// Acks learns for which acknowledgements the process waits. If it is
	// nil, Receive must be called soon after each has come.
	Acks Acks
	// Outgoing tells which packets that were passed to Send have left the
	// process. If it is nil, all of them have.
	Outgoing Outgoing
	// Writes is called before the device first writes to the memory of a
	// request with a ticket, a receive, an RDMA read or an atomic operation,
	// and when such a receive is flushed. It is called again if a response
	// comes again.
	Writes func(ticket uint32)
	// Overwritten is called for the ticket of a receive to which the device
	// has written n bytes, or somewhat more, of a message that was dropped.
	// The receive serves the next message.
	Overwritten func(ticket, n uint32)
	// Dropped is called for the ticket of a receive that will not complete,
	// or whose completion the program does not get.
	Dropped func(ticket uint32)
	// CompletionEvent is called when a completion arrives in an armed
	// completion queue. armed is what the queue's Armed was.
	CompletionEvent func(cq *CQ, armed uint32)
	// AsyncEvent is called with each asynchronous event. It may be nil.
	AsyncEvent func(e AsyncEvent)
}

// Device is an RDMA device with one port.
type Device struct {
	config Config
	limits Limits
	now    time.Duration // time of the last Advance
	start  int64         // absolute time at which now was 0, as Unix time in nanoseconds
	gone   bool          // whether the device was removed
	down   bool          // whether the port is down

	readPackets int // largest number of response packets that one READ request asks for

	pds, cqs, srqs int             // numbers of protection domains, completion queues and SRQs
	xrcds          int             // number of XRC domains
	xrcSRQs        map[uint32]*SRQ // SRQs for XRC, keyed by number
	compCounters   uint32          // number of completion counters
	qps            map[uint32]*QP  // keyed by number
	mrs            map[uint32]*MR  // keyed by the upper 24 bits of the key
	mws            map[uint32]*MW  // keyed like mrs
	dm             uint64          // bytes of device memory that are allocated
	ahs            map[uint64]*AH  // keyed by handle
	gids           [gidTableSize]GIDEntry
	listed         []libibverbs.GidEntry // result of GIDs, or nil if gids has changed since
	addresses      map[wire.GID]bool     // true for each GID in gids
	groups         map[wire.GID][]*QP    // members of each multicast group, in the order of joining

	recentQPNs []uint32 // numbers of recently destroyed queue pairs, the newest last

	moderated []*CQ // queues whose event is delayed by moderation
	failing   []*QP // queue pairs that the next Advance puts into the error state
	orphans   []*QP // queue pairs whose peers' processes have ended and whose requests do not fail yet
	schedule  schedule
	unheard   bool // whether an acknowledgement may have come before a queue pair began to wait for it
	staged    publication
	counters  Counters // Retries is the sum over destroyed queue pairs only

	// Buffers that copies reuse, to avoid allocations.
	target, source [][]byte
	word           [8]byte
	header         [wire.GRHLen]byte
	discarded      [pageSize]byte // memory for what is written to null regions; nothing reads it
}

// New returns a device whose port is active and whose GID table is empty.
func New(c Config) *Device {
	if c.Random == nil {
		var seed [32]byte
		for i := 0; i < len(seed); i += 8 {
			binary.LittleEndian.PutUint64(seed[i:], rand.Uint64()) // from Go's runtime, whose generator the system seeds
		}
		c.Random = rand.New(rand.NewChaCha8(seed))
	}
	if c.Packets == nil {
		c.Packets = &PacketPool{}
	}
	if c.MTU == 0 {
		c.MTU = libibverbs.IBV_MTU_4096
	}
	reads := maxReadPackets
	if c.Window == 0 {
		c.Window = window
	} else {
		reads = c.Window
	}
	if c.QPNs == 0 {
		c.FirstQPN, c.QPNs = 16, 1<<16
	}
	if c.MaxQPs == 0 {
		c.MaxQPs = c.QPNs
	}
	limits := Largest()
	if c.Limits != nil {
		limits = *c.Limits
	}
	limits.QPs = min(limits.QPs, c.MaxQPs)
	c.MTU = min(c.MTU, limits.MTU)
	return &Device{
		config: c, limits: limits, readPackets: reads,
		qps: map[uint32]*QP{}, mrs: map[uint32]*MR{}, mws: map[uint32]*MW{},
		xrcSRQs: map[uint32]*SRQ{}, ahs: map[uint64]*AH{}, groups: map[wire.GID][]*QP{}, addresses: map[wire.GID]bool{},
		start: c.Start.UnixNano(),
	}
}

// Attr returns what ibv_query_device_ex returns. The time stamps of completions
// are in nanoseconds.
func (d *Device) Attr() (libibverbs.DeviceAttrEx, error) {
	if err := d.check(); err != nil {
		return libibverbs.DeviceAttrEx{}, err
	}
	guid, l := libibverbs.NewBe64(d.config.GUID), &d.limits
	return libibverbs.DeviceAttrEx{
		OrigAttr: libibverbs.DeviceAttr{
			NodeGuid: guid, SysImageGuid: guid, VendorId: noVendor, PageSizeCap: math.MaxUint32 &^ (pageSize - 1),
			DeviceCapFlags: l.capabilities(), AtomicCap: l.atomicCap(), PhysPortCnt: 1, MaxPkeys: 1,
			LocalCaAckDelay: ackDelay, MaxMrSize: maxMRSize, MaxMr: int32(l.MRs), MaxMw: int32(l.MWs), MaxPd: int32(l.PDs), MaxAh: int32(l.AHs),
			MaxQp: int32(l.QPs), MaxQpWr: int32(l.WR), MaxSge: int32(l.SGE), MaxSgeRd: int32(l.ReadSGE), MaxCq: int32(l.CQs), MaxCqe: int32(l.CQE),
			MaxQpRdAtom: int32(l.Reads), MaxQpInitRdAtom: int32(l.Reads),
			MaxResRdAtom: int32(min(uint64(l.Reads)*uint64(l.QPs), math.MaxInt32)),
			MaxSrq:       int32(l.SRQs), MaxSrqWr: int32(l.srqWR()), MaxSrqSge: int32(l.srqSGE()), MaxMcastGrp: int32(l.Groups),
			MaxMcastQpAttach: int32(min(l.Groups, 1) * maxGroupQPs), MaxTotalMcastQpAttach: int32(l.Groups * maxGroupQPs),
		},
		DeviceCapFlagsEx: d.capabilitiesEx(), CompletionTimestampMask: math.MaxUint64, HcaCoreClock: nanoseconds,
		CqModCaps: libibverbs.CqModerationCaps{MaxCqCount: math.MaxUint16, MaxCqPeriod: math.MaxUint16}, PhysPortCntEx: 1,
		PacketPacingCaps: l.pacingCaps(),
		OdpCaps:          l.odpCaps(), XrcOdpCaps: l.xrcODPCaps(), MaxDmSize: uint64(l.DM),
		TmCaps: l.tagCaps(),
	}, nil
}

const (
	noVendor    = 0xFFFFFF
	ackDelay    = 15      // code of 4.096 us * 2^15, which is 134 ms
	nanoseconds = 1000000 // frequency of the device's clock in kHz, so that a tick is a nanosecond
)

// Remove removes the device, as if it were unplugged. It reports an
// asynchronous event and puts all queue pairs into the error state. Afterwards,
// packets are lost in both directions, and all calls fail with EIO except those
// that destroy objects.
func (d *Device) Remove() {
	if d.gone {
		return
	}
	d.gone, d.down = true, true
	d.event(libibverbs.IBV_EVENT_DEVICE_FATAL, nil)
	for _, q := range d.QPs() {
		q.fail()
	}
}

// check returns EIO once the device has been removed.
func (d *Device) check() error {
	if d.gone {
		return syscall.EIO
	}
	return nil
}

// Removed reports whether the device has been removed.
func (d *Device) Removed() bool { return d.gone }

// event reports an asynchronous event.
func (d *Device) event(t libibverbs.EventType, object any) {
	if d.config.AsyncEvent != nil {
		d.config.AsyncEvent(AsyncEvent{Type: t, Object: object})
	}
}
