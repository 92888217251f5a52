// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// nothing is what Left says of a manager that has nothing left.
const nothing = "0 IDs, 0 ports, 0 claims, 0 connections, 0 numbers, 0 queue pairs, 0 services, 0 timers"

// latency is how long a message takes, unless a fault says otherwise.
const latency = time.Millisecond

// A network connects nodes, in a time of its own.
type network struct {
	t     testing.TB
	now   time.Duration
	nodes []*node
	// fault returns after which times a message arrives, once or more often;
	// never, if none.
	fault   func(wire.Message) []time.Duration
	flying  []flight // sorted by time
	sent    []string // all messages, as REQ and so on
	actions []action // what programs do later, sorted by time
	serial  uint32   // of queue pairs
}

type flight struct {
	at time.Duration
	to *node
	cm.MAD
}

type action struct {
	at time.Duration
	do func()
}

// A node is a process: a manager, and what it has of the machine.
type node struct {
	*cm.Manager
	net     *network
	number  int
	ports   map[netip.Addr]cm.Port
	claims  map[cm.Claim]bool
	listens map[cm.Claim]bool // claims at which IDs listen
	groups  map[netip.Addr]int
}

func newNetwork(t testing.TB) *network { return &network{t: t} }

// node adds a node with addresses, all on one device.
func (n *network) node(scale float64, addrs ...string) *node {
	number := len(n.nodes) + 1
	random := rand.New(rand.NewPCG(uint64(number), 7))
	nd := &node{
		net: n, number: number,
		ports: map[netip.Addr]cm.Port{}, claims: map[cm.Claim]bool{}, listens: map[cm.Claim]bool{}, groups: map[netip.Addr]int{},
	}
	for i, a := range addrs {
		nd.ports[netip.MustParseAddr(a)] = cm.Port{
			Device: fmt.Sprint("device", number), Num: 1, SGIDIndex: uint8(i + 1), MTU: libibverbs.IBV_MTU_1024,
			AckDelay: 15, MaxResponderResources: 128, MaxInitiatorDepth: 128, FlushAccess: libibverbs.IBV_ACCESS_FLUSH_GLOBAL,
		}
	}
	nd.Manager = cm.New(cm.Config{Host: nd, Random: random.Uint32, GUID: uint64(number) << 32, Scale: scale})
	n.nodes = append(n.nodes, nd)
	return nd
}

// Route knows the addresses of all nodes, from any of its own of the family.
func (nd *node) Route(dst, src netip.Addr) (netip.Addr, error) {
	if src.IsValid() {
		return src, nil
	}
	if _, own := nd.ports[dst]; own || dst.IsLoopback() {
		return dst, nil
	}
	for _, other := range nd.net.nodes {
		if _, ok := other.ports[dst]; !ok {
			continue
		}
		for _, a := range slices.SortedFunc(maps.Keys(nd.ports), netip.Addr.Compare) {
			if a.Is4() == dst.Is4() && !a.IsLoopback() {
				return a, nil
			}
		}
	}
	switch dst { // a way, but not by a device
	case netip.MustParseAddr("198.51.100.1"):
		return netip.MustParseAddr("198.51.100.2"), nil
	case netip.MustParseAddr("198.51.100.3"):
		return netip.MustParseAddr("198.51.100.4"), nil
	}
	return netip.Addr{}, syscall.ENETUNREACH
}

func (nd *node) Port(addr netip.Addr) (cm.Port, error) {
	if p, ok := nd.ports[addr]; ok {
		return p, nil
	}
	if addr == netip.MustParseAddr("198.51.100.2") {
		return cm.Port{}, syscall.ENODEV
	}
	return cm.Port{}, syscall.EADDRNOTAVAIL
}

func (nd *node) Claim(c cm.Claim) (func(), error) {
	for _, other := range nd.net.nodes {
		if other.claims[c] {
			return nil, syscall.EADDRINUSE
		}
	}
	nd.claims[c] = true
	return func() {
		require.True(nd.net.t, nd.claims[c], "a claim is released twice")
		delete(nd.claims, c)
	}, nil
}

func (nd *node) Announce(c cm.Claim) func() {
	require.False(nd.net.t, nd.listens[c], "two IDs listen at a port")
	nd.listens[c] = true
	return func() {
		require.True(nd.net.t, nd.listens[c], "an ID ceases to listen twice")
		delete(nd.listens, c)
	}
}

// Answers knows a way to every host but one.
func (nd *node) Answers(own, peer netip.Addr) bool {
	return own.Is4() == peer.Is4() && peer != netip.MustParseAddr("198.51.100.77")
}

func (nd *node) JoinMulticast(_ cm.Port, group netip.Addr) error {
	if group == netip.MustParseAddr("224.0.0.99") {
		return syscall.ENOBUFS
	}
	nd.groups[group]++
	return nil
}

func (nd *node) LeaveMulticast(_ cm.Port, group netip.Addr) {
	if nd.groups[group]--; nd.groups[group] == 0 {
		delete(nd.groups, group)
	}
}

// Send takes a message of the node on its way.
func (nd *node) Send(mad cm.MAD) {
	n := nd.net
	msg, err := wire.ParseMAD(mad.Data)
	require.NoError(n.t, err)
	n.sent = append(n.sent, msg.Attribute().String())
	to := nd
	if mad.Node != 0 {
		to = n.nodes[mad.Node-1]
	} else {
		space, port, ok := wire.ServicePort(mad.Service)
		require.True(n.t, ok)
		for _, other := range n.nodes {
			// If no node has the port, a node with the address refuses.
			if _, ok := other.ports[mad.Dst]; ok && (to == nd || other.has(librdmacm.PortSpace(space), mad.Dst, port)) {
				to = other
			}
		}
		mad.Routed(to.number)
	}
	mad.Node, mad.Service, mad.Routed = nd.number, 0, nil
	delays := []time.Duration{latency}
	if n.fault != nil {
		delays = n.fault(msg)
	}
	for _, d := range delays {
		at := n.now + d
		i, _ := slices.BinarySearchFunc(n.flying, at+1, func(f flight, at time.Duration) int { return int(f.at - at) })
		n.flying = slices.Insert(n.flying, i, flight{at, to, mad})
	}
}

func (nd *node) has(space librdmacm.PortSpace, addr netip.Addr, port uint16) bool {
	for c := range nd.claims {
		if c.Space == space && c.Addr.Port() == port && (c.Addr.Addr() == addr || c.Addr.Addr().IsUnspecified()) {
			return true
		}
	}
	return false
}

// after does something later.
func (n *network) after(d time.Duration, do func()) {
	at := n.now + d
	i, _ := slices.BinarySearchFunc(n.actions, at+1, func(a action, at time.Duration) int { return int(a.at - at) })
	n.actions = slices.Insert(n.actions, i, action{at, do})
}

// step lets the time pass to what happens next, and returns false if that is
// after a time, or never.
func (n *network) step(until time.Duration) bool {
	next, what := until, (func())(nil)
	for _, nd := range n.nodes {
		if at, ok := nd.Next(); ok && at <= next {
			next, what = at, func() {
				again, ok := nd.Advance(n.now)
				require.True(n.t, !ok || again > n.now)
			}
		}
	}
	if len(n.flying) > 0 && n.flying[0].at <= next {
		f := n.flying[0]
		next, what = f.at, func() {
			n.flying = n.flying[1:]
			f.to.Receive(n.now, f.MAD)
		}
	}
	if len(n.actions) > 0 && n.actions[0].at <= next {
		a := n.actions[0]
		next, what = a.at, func() {
			n.actions = n.actions[1:]
			a.do()
		}
	}
	if what == nil {
		return false
	}
	n.now = max(n.now, next)
	what()
	return true
}

// run lets time pass.
func (n *network) run(d time.Duration) {
	until := n.now + d
	for n.step(until) {
	}
	n.now = until
}

// settle runs until nothing happens any more.
func (n *network) settle() {
	until := n.now + 1000*time.Hour
	for n.step(until) {
	}
	for _, nd := range n.nodes {
		_, busy := nd.Next()
		require.False(n.t, busy, "it never ends")
	}
}

// count returns how many messages of a kind have been sent.
func (n *network) count(kind string) int {
	number := 0
	for _, s := range n.sent {
		if s == kind {
			number++
		}
	}
	return number
}

// empty requires that no node has anything left.
func (n *network) empty() {
	n.t.Helper()
	for _, nd := range n.nodes {
		require.Equal(n.t, nothing, nd.Left())
		require.Empty(n.t, nd.claims)
		require.Empty(n.t, nd.listens)
		require.Empty(n.t, nd.groups)
	}
}

// A program has a channel, and takes its events when they come: it writes them
// down and calls what is registered for them.
type program struct {
	*node
	name    string
	channel *cm.Channel
	waiting int // how many events the channel says that it has
	log     []string
	events  []*cm.Event
	on      map[librdmacm.CmEventType]func(*cm.Event)
}

// program starts a program on a node.
func (nd *node) program(name string) *program {
	p := &program{node: nd, name: name, on: map[librdmacm.CmEventType]func(*cm.Event){}}
	p.channel = nd.NewChannel(func(events int) {
		if p.waiting += events; events > 0 {
			nd.net.after(0, p.take)
		}
	})
	return p
}

// take takes one event.
func (p *program) take() {
	require.Equal(p.net.t, p.waiting, p.channel.Len())
	e := p.channel.Next()
	if e == nil {
		return // its ID was destroyed or has moved
	}
	p.waiting--
	s := strings.TrimPrefix(e.Type.String(), "RDMA_CM_EVENT_")
	if e.Status != 0 {
		s += fmt.Sprintf("(%d)", e.Status)
	}
	p.log = append(p.log, s)
	p.events = append(p.events, e)
	if react := p.on[e.Type]; react != nil {
		react(e)
	}
}

// last returns the newest event, which must be of a type.
func (p *program) last(want librdmacm.CmEventType) *cm.Event {
	p.net.t.Helper()
	require.NotEmpty(p.net.t, p.events, "no event")
	e := p.events[len(p.events)-1]
	require.Equal(p.net.t, want, e.Type)
	return e
}

func (p *program) id(space librdmacm.PortSpace) *cm.ID {
	id, err := p.NewID(p.channel, space, libibverbs.IBV_QPT_RC, p.name)
	require.NoError(p.net.t, err)
	return id
}

// listen returns an ID that listens at an address.
func (p *program) listen(space librdmacm.PortSpace, addr string) *cm.ID {
	id := p.id(space)
	require.NoError(p.net.t, id.Bind(netip.MustParseAddrPort(addr)))
	require.NoError(p.net.t, id.Listen(0))
	return id
}

// resolve returns an ID with a route to an address.
func (p *program) resolve(space librdmacm.PortSpace, addr string) *cm.ID {
	id := p.id(space)
	require.NoError(p.net.t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(addr)))
	require.NoError(p.net.t, id.ResolveRoute(time.Second))
	return id
}

func param(qpn uint32, private string) cm.ConnParam {
	p := cm.DefaultConnParam()
	p.QPNum, p.PrivateData = qpn, []byte(private)
	return p
}

// pad returns private data as it arrives.
func pad(s string, length int) []byte { return append([]byte(s), make([]byte, length-len(s))...) }

// Events, short.
const (
	addrResolved  = librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED
	addrError     = librdmacm.RDMA_CM_EVENT_ADDR_ERROR
	routeResolved = librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED
	connRequest   = librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST
	connResponse  = librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE
	unreachable   = librdmacm.RDMA_CM_EVENT_UNREACHABLE
	rejected      = librdmacm.RDMA_CM_EVENT_REJECTED
	established   = librdmacm.RDMA_CM_EVENT_ESTABLISHED
	disconnected  = librdmacm.RDMA_CM_EVENT_DISCONNECTED
	removal       = librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL
	multicastJoin = librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN
	addrChange    = librdmacm.RDMA_CM_EVENT_ADDR_CHANGE
	timewaitExit  = librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT

	tcp = librdmacm.RDMA_PS_TCP
	udp = librdmacm.RDMA_PS_UDP
)

func join(log []string) string { return strings.Join(log, " ") }
