// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Config configures a Manager. Only Scale may be left zero.
type Config struct {
	Host Host
	// Random returns random numbers. The manager derives connection numbers,
	// ports and first packet sequence numbers from them.
	Random func() uint32
	// GUID distinguishes this manager from those of other nodes. A node of this
	// machine must not have had the same one within the last seconds, so it is
	// best random.
	GUID uint64
	// Scale multiplies Linux's times; 0 means DefaultScale. With Scale 1, a
	// message is repeated after 4 to 6 seconds, and a peer is unreachable
	// after 98.
	Scale float64
}

// DefaultScale suits networks that lose messages only if a test wants that: a
// message is repeated after 512 to 768 ms, and a peer is unreachable after 12
// seconds.
const DefaultScale = 1. / 8

// A Manager is the connection manager of a node.
type Manager struct {
	host   Host
	random func() uint32
	guid   uint64
	scale  float64

	serial     uint64 // the serial number of the newest ID or connection
	ids        map[*ID]struct{}
	bound      map[service][]*ID
	claims     map[Claim]*claim
	conns      map[uint32]*conn  // keyed by this side's number
	remoteIDs  map[remote]*conn  // keyed by the peer's number
	remoteQPNs map[remote]*conn  // keyed by the peer's queue pair; only established connections and those on the way
	sidr       map[sidrKey]*conn // incoming service requests
	timers     timers
	timeWaits  int // number of connections in time wait
}

// A remote is a number that a peer chose. The GUID is also the peer's choice
// and proves nothing, so the key has the peer too.
type remote struct {
	peer   peer
	guid   uint64
	number uint32
}

// A sidrKey identifies an incoming request for a datagram service.
type sidrKey struct {
	peer   peer
	number uint32
}

// New returns a manager.
func New(config Config) *Manager {
	if config.Scale == 0 {
		config.Scale = DefaultScale
	}
	return &Manager{
		host:       config.Host,
		random:     config.Random,
		guid:       config.GUID,
		scale:      config.Scale,
		ids:        map[*ID]struct{}{},
		bound:      map[service][]*ID{},
		claims:     map[Claim]*claim{},
		conns:      map[uint32]*conn{},
		remoteIDs:  map[remote]*conn{},
		remoteQPNs: map[remote]*conn{},
		sidr:       map[sidrKey]*conn{},
	}
}

// Advance runs the timers that are due, and returns when to call it next, as
// Next does.
func (m *Manager) Advance(now time.Duration) (next time.Duration, ok bool) {
	for len(m.timers) > 0 && m.timers[0].due <= now {
		heap.Pop(&m.timers).(*conn).expire(now)
	}
	return m.Next()
}

// Next returns when to call Advance. It returns false if no timer runs. Each
// call that takes the time may change that.
func (m *Manager) Next() (next time.Duration, ok bool) {
	if len(m.timers) == 0 {
		return 0, false
	}
	return m.timers[0].due, true
}

// Receive handles a message that has arrived. It drops malformed messages, and
// those from an address that no host can have.
func (m *Manager) Receive(now time.Duration, in MAD) {
	message, err := wire.ParseMAD(in.Data)
	if err != nil || !isHost(in.Src) {
		return
	}
	switch msg := message.(type) {
	case *wire.REQ:
		m.receiveREQ(now, in, msg)
	case *wire.REP:
		m.receiveREP(now, in, msg)
	case *wire.RTU:
		if c := m.between(in, msg.RemoteCommID, msg.LocalCommID); c != nil {
			c.establish()
		}
	case *wire.MRA:
		m.receiveMRA(now, in, msg)
	case *wire.REJ:
		m.receiveREJ(now, in, msg)
	case *wire.DREQ:
		m.receiveDREQ(now, in, msg)
	case *wire.DREP:
		if c := m.between(in, msg.RemoteCommID, msg.LocalCommID); c != nil {
			c.receiveDREP(now)
		}
	case *wire.SIDRReq:
		m.receiveSIDRReq(in, msg)
	case *wire.SIDRRep:
		m.receiveSIDRRep(in, msg)
	}
}

// between returns the connection with these two numbers, if the message comes
// from its peer. remote is 0 if this side does not know the peer's number yet.
func (m *Manager) between(in MAD, local, remote uint32) *conn {
	if c := m.conns[local]; c != nil && c.remoteID == remote && c.isOf(in) {
		return c
	}
	return nil
}

// answer sends a message to the sender of in.
func (m *Manager) answer(in MAD, message wire.Message) {
	data := wire.MAD(message)
	m.host.Send(MAD{Node: in.Node, Src: in.Dst, Dst: in.Src, Data: data[:]})
}

// NodeGone ends the connections to a node that has ended, as that node's
// manager would have done at an orderly exit.
func (m *Manager) NodeGone(now time.Duration, node int) {
	oldestFirst := func(a, b *conn) int { return cmp.Compare(a.serial, b.serial) }
	for _, c := range slices.SortedFunc(maps.Values(m.conns), oldestFirst) {
		if c.node == node {
			c.peerGone(now)
		}
	}
}

// Unreachable handles a message of this manager that the peer's host refused,
// because no process there could take it. back has the peer's address as Src,
// as if the message had come back. A request to disconnect then needs no
// answer. Other messages are still repeated, as a process may yet start.
func (m *Manager) Unreachable(now time.Duration, back MAD) {
	message, err := wire.ParseMAD(back.Data)
	if err != nil {
		return
	}
	if msg, ok := message.(*wire.DREQ); ok {
		if c := m.between(back, msg.LocalCommID, msg.RemoteCommID); c != nil && c.state == connDREQSent {
			c.peerGone(now)
		}
	}
}

// RemoveDevice handles the removal of a device. The IDs on it report
// DEVICE_REMOVAL, their connections end, and from then on their methods fail
// with ENXIO, except for Destroy.
func (m *Manager) RemoveDevice(now time.Duration, device any) {
	for _, id := range m.idsThat(func(id *ID) bool { return id.port.Device == device && !id.removed }) {
		id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL})
		id.end(now)
		id.removed = true
	}
}

// ChangeAddress reports ADDR_CHANGE for the IDs on a device, as Linux does when
// a bond changes its active link.
func (m *Manager) ChangeAddress(device any) {
	for _, id := range m.idsThat(func(id *ID) bool { return id.port.Device == device && !id.removed }) {
		id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ADDR_CHANGE})
	}
}

// A Path is the content of a path record: the parameters of the way from one
// port to another.
type Path struct {
	SGID, DGID     wire.GID
	FlowLabel      uint32
	TrafficClass   uint8
	HopLimit       uint8
	SL             uint8
	Rate           uint8
	MTU            libibverbs.Mtu
	PKey           uint16
	PacketLifeTime uint8
}

// ahAttr returns the path as an address handle's attributes.
func (p *Path) ahAttr(port Port) libibverbs.AhAttr {
	a := libibverbs.AhAttr{
		Grh: libibverbs.GlobalRoute{
			FlowLabel:    p.FlowLabel,
			SgidIndex:    port.SGIDIndex,
			HopLimit:     p.HopLimit,
			TrafficClass: p.TrafficClass,
		},
		Sl:         p.SL,
		StaticRate: p.Rate,
		IsGlobal:   1,
		PortNum:    port.Num,
	}
	*a.Grh.Dgid.Raw() = p.DGID
	return a
}
