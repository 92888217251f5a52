// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"container/heap"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Config configures a Manager. All fields but Scale must be set.
type Config struct {
	Host Host
	// Random returns random numbers. The manager uses them for
	// communication IDs, ports and first PSNs.
	Random func() uint32
	// GUID identifies this manager in messages. It must differ from the
	// GUIDs of other nodes, and of nodes of this machine that have ended in
	// the last seconds. So a caller should choose it at random.
	GUID uint64
	// Scale multiplies Linux's timeouts; 0 means DefaultScale. With Scale
	// 1, a message is repeated after 4 to 6 seconds, and the peer counts as
	// unreachable after 98 seconds.
	Scale float64
}

// DefaultScale is for networks that rarely lose messages. A message is repeated
// after 512 to 768 ms, and the peer counts as unreachable after 12 seconds.
const DefaultScale = 1. / 8

// Manager is the connection manager of a node.
type Manager struct {
	host   Host
	random func() uint32
	guid   uint64
	scale  float64

	serial     uint64 // serial number of the newest ID or connection
	ids        map[*ID]struct{}
	bound      map[service][]*ID
	claims     map[Claim]*claim
	conns      map[uint32]*conn  // keyed by this side's communication ID
	remoteIDs  map[remote]*conn  // keyed by the peer's communication ID
	remoteQPNs map[remote]*conn  // keyed by the peer's queue pair; has connections that are established or being set up
	sidr       map[sidrKey]*conn // incoming requests for a datagram service
	timers     timers
	timeWaits  int // number of connections in time wait
}

// remote is a number that a peer chose, with the peer that chose it. The GUID
// alone does not identify the peer, since the peer chooses it as well. So the
// key also has the peer's node and address, which the host has verified.
type remote struct {
	peer   peer
	guid   uint64
	number uint32
}

// sidrKey identifies an incoming request for a datagram service.
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

// Advance handles the timers that are due at the time now. It returns what Next
// returns.
func (m *Manager) Advance(now time.Duration) (next time.Duration, ok bool) {
	for len(m.timers) > 0 && m.timers[0].due <= now {
		heap.Pop(&m.timers).(*conn).expire(now)
	}
	return m.Next()
}

// Next returns the time at which Advance must be called. ok is false if no
// timer is running. Each method that takes the current time may change the
// result.
func (m *Manager) Next() (next time.Duration, ok bool) {
	if len(m.timers) == 0 {
		return 0, false
	}
	return m.timers[0].due, true
}

// Receive handles a message from the network. It drops malformed messages, and
// messages from an address that no host can have.
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

// between returns the connection with the communication IDs local and remote.
// It returns nil if there is none, or if the message in does not come from the
// connection's peer. remote is 0 if this side does not know the peer's ID yet.
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

// NodeGone ends the connections to a node whose process has ended. The effect
// is as if that node's manager had ended them.
func (m *Manager) NodeGone(now time.Duration, node int) {
	conns := slices.Collect(maps.Values(m.conns))
	sort.Slice(conns, func(i, j int) bool { return conns[i].serial < conns[j].serial })
	for _, c := range conns {
		if c.node == node {
			c.peerGone(now)
		}
	}
}

// Unreachable handles that the peer's host has refused a message of this
// manager, because no process has the port open. back is the refused message
// with Src and Dst exchanged. If the message is a request to disconnect, the
// connection ends without an answer. The manager continues to repeat other
// messages, as the peer's process may be about to start.
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

// RemoveDevice handles the removal of a device. The IDs on the device report
// DEVICE_REMOVAL, and their connections end. Afterwards, the methods of these
// IDs fail with ENXIO, except Destroy.
func (m *Manager) RemoveDevice(now time.Duration, device any) {
	for _, id := range m.idsThat(func(id *ID) bool { return id.port.Device == device && !id.removed }) {
		id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL})
		id.end(now)
		id.removed = true
	}
}

// ChangeAddress reports ADDR_CHANGE for the IDs on a device, as Linux does when
// a bonded interface changes its active link.
func (m *Manager) ChangeAddress(device any) {
	for _, id := range m.idsThat(func(id *ID) bool { return id.port.Device == device && !id.removed }) {
		id.report(&Event{Type: librdmacm.RDMA_CM_EVENT_ADDR_CHANGE})
	}
}

// Path is the content of a path record: the parameters of packets from one port
// to another.
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

// ahAttr returns the attributes of an address handle for the path, which begins
// at port.
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
