// SPDX-License-Identifier: Apache-2.0

package engine

import (
	crand "crypto/rand"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Limits of every device.
const (
	maxPDs       = 1 << 16
	maxMRs       = 1 << 17
	maxMWs       = 1 << 16
	maxAHs       = 1 << 16
	maxCQs       = 1 << 16
	maxCQE       = 1<<22 - 1
	maxSRQs      = 1 << 16
	maxWR        = 1 << 14 // of a send or receive queue
	maxSRQWR     = 1 << 16
	maxSGE       = 32
	maxInline    = 1024
	maxRDAtomic  = 128 // RDMA reads and atomics that a queue pair has in flight, in each direction
	maxGroups    = 1 << 13
	maxGroupQPs  = 256 // queue pairs of a multicast group
	maxMessage   = 1 << 31
	gidTableSize = 256
	defaultPKey  = 0xFFFF

	maxMRSize = math.MaxInt64
	pageSize  = 4096
)

// Config says what a device is like and where its output goes. The functions are
// called from within calls of the device, by the same goroutine; they must not call the
// device.
type Config struct {
	// Random chooses the numbers of queue pairs and the keys of memory, which
	// peers must not guess. nil: a generator whose numbers do not tell the next
	// ones, seeded from the system.
	Random *rand.Rand
	// Hostile makes the device as unfriendly as the specification lets it be, at random: queue pairs have
	// turns of a few packets, and messages meet receivers that are not ready. nil: it is friendly.
	Hostile  *rand.Rand
	FirstQPN uint32 // queue pairs get numbers from here on, at random, of which 0, 1 and 0xFFFFFF must not be one
	QPNs     uint32 // how many numbers there are; 0: 65536 from 16 on
	MaxQPs   uint32 // how many queue pairs there may be; 0: as many as numbers
	GUID     uint64
	MTU      libibverbs.Mtu // of the port; 0: 4096 bytes
	// Window is how many packets of a reliable connection may be without an answer. If it is not 0, RDMA reads, too, are asked
	// for in parts that are answered with as many packets at most. 0: 256, and reads as a whole.
	Window int
	Start  time.Time // when the time that Advance gets was 0

	// ECN makes packets of connections say that routers may mark them. Who receives marked ones is told to send more slowly, and
	// whoever is told so does. It must not be set where the bits of ECN are not the network's.
	ECN bool

	// Packets is where packets come from and go to; nil: a pool of the device's own.
	Packets *PacketPool
	// Send passes on a packet, which belongs to it from now on; PacketPool.Put takes what is not delivered. The
	// payload are slices of the program's memory. A link that delivers the packet after Send has returned
	// copies them, unless the packet is of a reliable connection: there the memory stays as it is until the
	// message is answered, and if it does not, Receive drops the packet as if it had been lost.
	Send func(p *wire.Packet)
	// Room reports whether there is room on the way to a queue pair. If not, a reliable connection sends only
	// while nothing of it waits for an ACK; Resume is to be called when there may be room. nil: there always is.
	Room func(qpn uint32) bool
	// Outgoing tells when what Send gets has left the process. nil: it does so at once.
	Outgoing Outgoing
	// CompletionEvent tells that a completion queue that was armed has a completion.
	CompletionEvent func(cq *CQ)
	// AsyncEvent passes on an asynchronous event.
	AsyncEvent func(e AsyncEvent)
}

// Device is an RDMA device with one port.
type Device struct {
	config Config
	now    time.Duration
	start  int64 // nanoseconds since 1970 when now was 0
	gone   bool  // was removed
	down   bool  // the port is

	readPackets int // which one request of an RDMA read asks for at most

	pds, cqs, srqs int            // how many there are
	qps            map[uint32]*QP // by number
	mrs            map[uint32]*MR // by the upper 24 bits of the key
	mws            map[uint32]*MW // the same
	ahs            map[uint64]*AH // by handle
	gids           [gidTableSize]GIDEntry
	addresses      map[wire.GID]bool  // that are in gids
	groups         map[wire.GID][]*QP // in the order of their joining

	lately []uint32 // numbers of queue pairs that are free, the newest last
	nextAH uint64

	moderated []*CQ // hold an event back
	failing   []*QP // go to the error state when the device next advances
	orphans   []*QP // their peers' processes have ended a moment ago
	schedule  schedule
	staged    publication
	counters  Counters // Retries are those of queue pairs that are gone

	// What copying a packet uses, so that it need not allocate.
	target, source [][]byte
	word           [8]byte
	header         [wire.GRHLen]byte
}

// New returns a device whose port is active and has no GIDs.
func New(c Config) *Device {
	if c.Random == nil {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // it never fails
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
	return &Device{
		config: c, readPackets: reads,
		qps: map[uint32]*QP{}, mrs: map[uint32]*MR{}, mws: map[uint32]*MW{},
		ahs: map[uint64]*AH{}, groups: map[wire.GID][]*QP{}, addresses: map[wire.GID]bool{},
		start: c.Start.UnixNano(),
	}
}

// Capabilities of every device. Requests to invalidate a key are the only ones of
// IBV_DEVICE_MEM_MGT_EXTENSIONS that C's API has.
const capabilities = libibverbs.IBV_DEVICE_CURR_QP_STATE_MOD | libibverbs.IBV_DEVICE_PORT_ACTIVE_EVENT |
	libibverbs.IBV_DEVICE_SYS_IMAGE_GUID | libibverbs.IBV_DEVICE_RC_RNR_NAK_GEN | libibverbs.IBV_DEVICE_SRQ_RESIZE |
	libibverbs.IBV_DEVICE_MEM_WINDOW | libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS | libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B

// Attr returns what ibv_query_device_ex reports. Time stamps are in nanoseconds.
func (d *Device) Attr() (libibverbs.DeviceAttrEx, error) {
	if err := d.check(); err != nil {
		return libibverbs.DeviceAttrEx{}, err
	}
	guid := libibverbs.NewBe64(d.config.GUID)
	return libibverbs.DeviceAttrEx{
		OrigAttr: libibverbs.DeviceAttr{
			NodeGuid: guid, SysImageGuid: guid, VendorId: noVendor, PageSizeCap: math.MaxUint32 &^ (pageSize - 1),
			DeviceCapFlags: uint32(capabilities), AtomicCap: libibverbs.IBV_ATOMIC_HCA, PhysPortCnt: 1, MaxPkeys: 1,
			LocalCaAckDelay: ackDelay, MaxMrSize: maxMRSize, MaxMr: maxMRs, MaxMw: maxMWs, MaxPd: maxPDs, MaxAh: maxAHs,
			MaxQp: int32(d.config.MaxQPs), MaxQpWr: maxWR, MaxSge: maxSGE, MaxSgeRd: maxSGE, MaxCq: maxCQs, MaxCqe: maxCQE,
			MaxQpRdAtom: maxRDAtomic, MaxQpInitRdAtom: maxRDAtomic,
			MaxResRdAtom: int32(min(maxRDAtomic*uint64(d.config.MaxQPs), math.MaxInt32)),
			MaxSrq:       maxSRQs, MaxSrqWr: maxSRQWR, MaxSrqSge: maxSGE, MaxMcastGrp: maxGroups,
			MaxMcastQpAttach: maxGroupQPs, MaxTotalMcastQpAttach: maxGroups * maxGroupQPs,
		},
		DeviceCapFlagsEx: uint64(capabilities), CompletionTimestampMask: math.MaxUint64, HcaCoreClock: nanoseconds,
		CqModCaps: libibverbs.CqModerationCaps{MaxCqCount: math.MaxUint16, MaxCqPeriod: math.MaxUint16}, PhysPortCntEx: 1,
	}, nil
}

const (
	noVendor    = 0xFFFFFF
	ackDelay    = 15      // 4.096 us * 2^15: 134 ms
	nanoseconds = 1000000 // clock ticks, per millisecond
)

// Remove does what happens when a device is pulled out: it makes an event and puts queue pairs into the
// error state. From then on everything but removing objects fails with EIO, and packets that come or go are
// lost.
func (d *Device) Remove() {
	if d.gone {
		return
	}
	d.gone, d.down = true, true
	d.event(libibverbs.IBV_EVENT_DEVICE_FATAL, nil)
	for _, n := range slices.Sorted(maps.Keys(d.qps)) {
		d.qps[n].fail()
	}
}

// check returns EIO once the device has been removed.
func (d *Device) check() error {
	if d.gone {
		return syscall.EIO
	}
	return nil
}

func (d *Device) event(t libibverbs.EventType, object any) {
	if d.config.AsyncEvent != nil {
		d.config.AsyncEvent(AsyncEvent{Type: t, Object: object})
	}
}
