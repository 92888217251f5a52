// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
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
	maxRDAtomic  = 128 // RDMA reads and atomics in flight of a queue pair, in each direction
	maxGroups    = 1 << 13
	maxGroupQPs  = 256 // queue pairs in a multicast group
	maxMessage   = 1 << 31
	gidTableSize = 256
	defaultPKey  = 0xFFFF

	maxMRSize = math.MaxInt64
	pageSize  = 4096
)

// Config configures a device. Its functions are called within calls of the
// device, by the same goroutine. They must not call the device.
type Config struct {
	// Random chooses queue pair numbers and memory keys, which peers must not
	// be able to guess. If nil, the device uses a generator that is seeded by
	// the system and whose numbers do not reveal the next ones.
	Random *rand.Rand
	// Hostile, if not nil, makes the device behave as badly as the
	// specification allows, at random: queue pairs have turns of a few packets,
	// and messages meet receivers that are not ready.
	Hostile *rand.Rand
	// FirstQPN is the first of the queue pair numbers, from which the device
	// chooses at random. The range must not include 0, 1 and 0xFFFFFF.
	FirstQPN uint32
	// QPNs is the size of the range of numbers. 0 means the 65536 numbers from
	// 16 on.
	QPNs uint32
	// MaxQPs limits the number of queue pairs. 0 means QPNs.
	MaxQPs uint32
	GUID   uint64
	MTU    libibverbs.Mtu // the port's MTU; 0 means 4096 bytes
	// Window limits the packets of a reliable connection that have no answer
	// yet. If it is not 0, RDMA reads are also requested in parts whose
	// responses have at most that many packets. 0 means 256 packets, and reads
	// as a whole.
	Window int
	Start  time.Time // the time for which Advance gets 0

	// ECN makes packets of connections declare themselves markable by routers.
	// The receiver of a marked packet tells the sender to slow down, and the
	// sender does so. It must not be set where the ECN bits do not belong to
	// the network.
	ECN bool

	// Packets is the pool that packets come from and return to. If nil, the
	// device makes its own.
	Packets *PacketPool
	// Send passes on a packet, which then belongs to the callee; PacketPool.Put
	// takes back a packet that is not delivered. The payload consists of slices
	// of the program's memory. A link that delivers the packet after Send has
	// returned must copy them, unless the packet belongs to a reliable
	// connection: there the memory stays valid until the message is answered,
	// and if the program breaks that rule, Receive drops the packet as lost.
	Send func(p *wire.Packet)
	// Room reports whether there is room on the way to a queue pair. If there
	// is none, a reliable connection sends only while it waits for no ACK; the
	// owner must call Resume when there may be room again. If nil, there is
	// always room.
	Room func(qpn uint32) bool
	// Outgoing tells when packets passed to Send have left the process. If nil,
	// they leave at once.
	Outgoing Outgoing
	// CompletionEvent is called when an armed completion queue gets a
	// completion.
	CompletionEvent func(cq *CQ)
	// AsyncEvent is called with each asynchronous event.
	AsyncEvent func(e AsyncEvent)
}

// Device is an RDMA device with one port.
type Device struct {
	config Config
	now    time.Duration
	start  int64 // nanoseconds from 1970 to now's zero
	gone   bool  // whether the device was removed
	down   bool  // whether the port is down

	readPackets int // the most packets that one request of an RDMA read asks for

	pds, cqs, srqs int            // the number of these objects
	qps            map[uint32]*QP // keyed by number
	mrs            map[uint32]*MR // keyed by the upper 24 bits of the key
	mws            map[uint32]*MW // keyed like mrs
	ahs            map[uint64]*AH // keyed by handle
	gids           [gidTableSize]GIDEntry
	addresses      map[wire.GID]bool  // the GIDs in gids
	groups         map[wire.GID][]*QP // in the order of joining

	lately []uint32 // numbers of queue pairs destroyed lately, the newest last
	nextAH uint64

	moderated []*CQ // queues that hold an event
	failing   []*QP // queue pairs that go to the error state at the next Advance
	orphans   []*QP // queue pairs whose peers' processes have just ended
	schedule  schedule
	staged    publication
	counters  Counters // Retries has only those of destroyed queue pairs

	// Scratch space for copying packets without allocation.
	target, source [][]byte
	word           [8]byte
	header         [wire.GRHLen]byte
}

// New returns a device whose port is active and has no GIDs.
func New(c Config) *Device {
	if c.Random == nil {
		var seed [32]byte
		for i := 0; i < len(seed); i += 8 {
			binary.LittleEndian.PutUint64(seed[i:], rand.Uint64()) // the runtime's, which the system seeds
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
	return &Device{
		config: c, readPackets: reads,
		qps: map[uint32]*QP{}, mrs: map[uint32]*MR{}, mws: map[uint32]*MW{},
		ahs: map[uint64]*AH{}, groups: map[wire.GID][]*QP{}, addresses: map[wire.GID]bool{},
		start: c.Start.UnixNano(),
	}
}

// Capabilities of every device. Of IBV_DEVICE_MEM_MGT_EXTENSIONS, C's API only
// has requests to invalidate a key.
const capabilities = libibverbs.IBV_DEVICE_CURR_QP_STATE_MOD | libibverbs.IBV_DEVICE_PORT_ACTIVE_EVENT |
	libibverbs.IBV_DEVICE_SYS_IMAGE_GUID | libibverbs.IBV_DEVICE_RC_RNR_NAK_GEN | libibverbs.IBV_DEVICE_SRQ_RESIZE |
	libibverbs.IBV_DEVICE_MEM_WINDOW | libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS | libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B

// Attr returns the result of ibv_query_device_ex. Time stamps are in
// nanoseconds.
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
	nanoseconds = 1000000 // clock ticks per millisecond
)

// Remove pulls the device out: it makes an event and puts all queue pairs into
// the error state. From then on, all calls fail with EIO except those that
// remove objects, and packets in both directions are lost.
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
