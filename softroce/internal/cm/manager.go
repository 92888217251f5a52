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

// Config says what New makes. All fields but Scale are needed.
type Config struct {
	Host Host
	// Random returns random numbers, from which come the numbers of connections, ports, and
	// first packets.
	Random func() uint32
	// GUID tells this manager from those of other nodes. It must not be one that a node of
	// this machine had some seconds ago, so it is random at best.
	GUID uint64
	// Scale multiplies Linux's times; 0 means DefaultScale. With 1 a message is repeated after
	// 4 to 6 seconds, and a peer is unreachable after 98.
	Scale float64
}

// DefaultScale is for peers that lose messages only if a test wants that: a message is repeated
// after 512 to 768 ms, and a peer is unreachable after 12 seconds.
const DefaultScale = 1. / 8

// A Manager is the connection manager of a node.
type Manager struct {
	host   Host
	random func() uint32
	guid   uint64
	scale  float64

	serial     uint64 // of the newest ID or connection
	ids        map[*ID]struct{}
	bound      map[service][]*ID
	claims     map[Claim]*claim
	conns      map[uint32]*conn  // by the number that this side gave
	remoteIDs  map[remote]*conn  // by the number that the peer gave
	remoteQPNs map[remote]*conn  // by the peer's queue pair; only while there is a connection
	sidr       map[sidrKey]*conn // requests for services that came in
	timers     timers
	timeWaits  int // of the timers
}

// A remote is a number that a peer has given. A peer says itself which GUID it
// has, so that alone tells nothing.
type remote struct {
	peer   peer
	guid   uint64
	number uint32
}

// A sidrKey tells requests for datagram services apart.
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

// Advance does what is due at a time, and returns when it wants to be called next, as Next does.
func (m *Manager) Advance(now time.Duration) (next time.Duration, ok bool) {
	for len(m.timers) > 0 && m.timers[0].due <= now {
		heap.Pop(&m.timers).(*conn).expire(now)
	}
	return m.Next()
}

// Next returns when Advance wants to be called, and false if it need not be. Any call that
// takes the time may change that.
func (m *Manager) Next() (next time.Duration, ok bool) {
	if len(m.timers) == 0 {
		return 0, false
	}
	return m.timers[0].due, true
}

// Receive takes a message that has arrived. It drops what is not a message, or
// from an address that no host can have.
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

// between returns the connection with the sender of a message to which both sides have given these numbers, the peer's 0
// if it is not known yet.
func (m *Manager) between(in MAD, local, remote uint32) *conn {
	if c := m.conns[local]; c != nil && c.remoteID == remote && c.isOf(in) {
		return c
	}
	return nil
}

// answer sends a message to where in came from.
func (m *Manager) answer(in MAD, message wire.Message) {
	data := wire.MAD(message)
	m.host.Send(MAD{Node: in.Node, Src: in.Dst, Dst: in.Src, Data: data[:]})
}

// NodeGone ends the connections to a node that has ended, as its own manager would have done
// if its process had exited in an orderly way.
func (m *Manager) NodeGone(now time.Duration, node int) {
	oldestFirst := func(a, b *conn) int { return cmp.Compare(a.serial, b.serial) }
	for _, c := range slices.SortedFunc(maps.Values(m.conns), oldestFirst) {
		if c.node == node {
			c.peerGone(now)
		}
	}
}

// Unreachable takes a message of this manager's that a peer's host has refused, since no process is there that could take it. Src is the peer's
// address, as if the message had come back. A request to disconnect needs no answer then. Other messages are repeated, as a process may come.
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

// RemoveDevice says that a device is gone. The IDs on it get DEVICE_REMOVAL, their connections
// end, and their calls fail with ENXIO from now on, except for Destroy.
func (m *Manager) RemoveDevice(now time.Duration, device any) {
	for _, id := range m.idsThat(func(id *ID) bool { return id.port.Device == device && !id.removed }) {
		id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL})
		id.end(now)
		id.removed = true
	}
}

// ChangeAddress gives the IDs on a device ADDR_CHANGE, as Linux does when the link that is in
// use of several bonded ones changes.
func (m *Manager) ChangeAddress(device any) {
	for _, id := range m.idsThat(func(id *ID) bool { return id.port.Device == device && !id.removed }) {
		id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ADDR_CHANGE})
	}
}

// A Path is what a path record says about the way from one port to another.
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
