// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// yes and no are values of an int option.
var yes, no = []byte{1, 0, 0, 0}, []byte{0, 0, 0, 0}

func reuse(t testing.TB, id *cm.ID) {
	require.NoError(t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_REUSEADDR, yes))
}

func afOnly(t testing.TB, id *cm.ID) {
	require.NoError(t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_AFONLY, yes))
}

// TestBind binds one ID after another, on two nodes.
func TestBind(t *testing.T) {
	type bind struct {
		node        int // 0 or 1
		space       librdmacm.PortSpace
		addr        string
		reuse, only bool
		err         error
	}
	for name, binds := range map[string][]bind{
		"two addresses":                {{addr: "10.0.0.2:7"}, {addr: "10.0.0.3:7"}},
		"the same":                     {{addr: "10.0.0.2:7"}, {addr: "10.0.0.2:7", err: syscall.EADDRINUSE}},
		"the same, other space":        {{addr: "10.0.0.2:7"}, {addr: "10.0.0.2:7", space: udp}, {addr: "10.0.0.2:7", space: librdmacm.RDMA_PS_IB}},
		"all, then one":                {{addr: "0.0.0.0:7"}, {addr: "10.0.0.2:7", err: syscall.EADDRNOTAVAIL}},
		"one, then all":                {{addr: "10.0.0.2:7"}, {addr: "0.0.0.0:7", err: syscall.EADDRNOTAVAIL}},
		"all of IPv4, then all":        {{addr: "0.0.0.0:7"}, {addr: "[::]:7", err: syscall.EADDRNOTAVAIL}},
		"all of IPv4, then of IPv6":    {{addr: "0.0.0.0:7"}, {addr: "[::]:7", only: true}},
		"one of each family":           {{addr: "10.0.0.2:7"}, {addr: "[2001:db8::2]:7"}},
		"reused by both":               {{addr: "10.0.0.2:7", reuse: true}, {addr: "10.0.0.2:7", reuse: true}},
		"reused by one":                {{addr: "10.0.0.2:7", reuse: true}, {addr: "10.0.0.2:7", err: syscall.EADDRINUSE}},
		"loopback stands for all":      {{addr: "127.0.0.1:7"}, {addr: "10.0.0.2:7", err: syscall.EADDRNOTAVAIL}},
		"one, then loopback":           {{addr: "10.0.0.2:7"}, {addr: "127.0.0.1:7", err: syscall.EADDRNOTAVAIL}},
		"loopback, another node":       {{addr: "127.0.0.1:7"}, {addr: "0.0.0.0:7", node: 1, err: syscall.EADDRINUSE}},
		"loopback of each family":      {{addr: "127.0.0.1:7"}, {addr: "[::1]:7", only: true}},
		"loopback, any port":           {{addr: "127.0.0.1:0"}, {addr: "[::1]:0"}},
		"all, reused by both":          {{addr: "0.0.0.0:7", reuse: true}, {addr: "0.0.0.0:7", reuse: true}},
		"no device":                    {{addr: "198.51.100.2:7", err: syscall.ENODEV}},
		"no such address":              {{addr: "203.0.113.9:7", err: syscall.EADDRNOTAVAIL}},
		"link-local, no link":          {{addr: "[fe80::2]:7", err: syscall.EINVAL}},
		"link-local":                   {{addr: "[fe80::2%1]:7"}},
		"any port":                     {{addr: "10.0.0.2:0"}, {addr: "10.0.0.2:0"}, {addr: "0.0.0.0:0"}},
		"another node has it":          {{addr: "10.0.0.2:7"}, {addr: "10.0.0.2:7", node: 1, err: syscall.EADDRINUSE}},
		"another node has the other":   {{addr: "10.0.0.2:7"}, {addr: "10.0.0.3:7", node: 1}},
		"no IPoIB on Ethernet":         {{addr: "10.0.0.2:7", space: librdmacm.RDMA_PS_IPOIB, err: syscall.EINVAL}},
		"IPoIB, but no address of any": {{addr: "0.0.0.0:7", space: librdmacm.RDMA_PS_IPOIB}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			addrs := []string{"10.0.0.2", "10.0.0.3", "2001:db8::2", "fe80::2%1"}
			programs := []*program{n.node(1, addrs...).program("a"), n.node(1, addrs...).program("b")}
			ids, ports := []*cm.ID{}, map[uint16]bool{}
			for i, b := range binds {
				if b.space == 0 {
					b.space = tcp
				}
				id := programs[b.node].id(b.space)
				ids = append(ids, id)
				if b.reuse {
					reuse(t, id)
				}
				if b.only {
					afOnly(t, id)
				}
				addr := netip.MustParseAddrPort(b.addr)
				err := id.Bind(addr)
				require.ErrorIsf(t, err, b.err, "%d", i)
				if b.err != nil {
					require.Equal(t, netip.AddrPort{}, id.LocalAddr())
					_, ok := id.Port()
					require.False(t, ok)
					continue
				}
				require.Equal(t, addr.Addr(), id.LocalAddr().Addr())
				if port := id.LocalAddr().Port(); addr.Port() == 0 {
					require.GreaterOrEqual(t, port, uint16(32768))
					require.LessOrEqual(t, port, uint16(60999))
					require.False(t, ports[port])
					ports[port] = true
				}
				require.ErrorIs(t, id.Bind(addr), syscall.EINVAL, "twice")
				if !b.reuse { // see TestReuse
					require.NoError(t, id.Listen(1))
					require.ErrorIs(t, id.Listen(1), syscall.EINVAL, "twice")
				}
			}
			for _, id := range ids {
				id.Destroy(n.now)
			}
			n.empty()
			require.NoError(t, programs[0].id(tcp).Bind(netip.MustParseAddrPort("0.0.0.0:7")), "all is released")
		})
	}
}

// TestReuse has IDs that share an address, which they may as long as none of
// them listens.
func TestReuse(t *testing.T) {
	n, _, server := pair(t)
	first, second := server.id(tcp), server.id(tcp)
	for _, id := range []*cm.ID{first, second} {
		reuse(t, id)
		require.NoError(t, id.Bind(netip.MustParseAddrPort(serverAddr)))
	}
	require.ErrorIs(t, first.Listen(1), syscall.EADDRINUSE)
	second.Destroy(n.now)
	require.NoError(t, first.Listen(1))
	third := server.id(tcp)
	reuse(t, third)
	require.ErrorIs(t, third.Bind(netip.MustParseAddrPort(serverAddr)), syscall.EADDRINUSE, "a listener does not share its port")
}

// TestNoPortLeft has a machine where other nodes have taken all ports, and one
// that has no sockets.
func TestNoPortLeft(t *testing.T) {
	for want, claim := range map[syscall.Errno]error{
		syscall.EADDRNOTAVAIL: syscall.EADDRINUSE,
		syscall.EMFILE:        syscall.EMFILE,
	} {
		n := newNetwork(t)
		m := cm.New(cm.Config{Host: &claimless{n.node(1, "10.0.0.2"), claim}, GUID: 1, Random: func() uint32 { return 9 }})
		id, err := m.NewID(m.NewChannel(func(int) {}), tcp, 0, nil)
		require.NoError(t, err)
		require.ErrorIs(t, id.Bind(netip.MustParseAddrPort("10.0.0.2:0")), want)
	}
}

// A claimless host has no port to give.
type claimless struct {
	*node
	err error
}

func (c *claimless) Claim(cm.Claim) (func(), error) { return nil, c.err }

// TestHostsErrors has a host that fails in a way of its own.
func TestHostsErrors(t *testing.T) {
	n := newNetwork(t)
	m := cm.New(cm.Config{Host: &portless{n.node(1, "10.0.0.1")}, GUID: 1, Random: func() uint32 { return 9 }})
	c := m.NewChannel(func(int) {})
	id, err := m.NewID(c, tcp, 0, nil)
	require.NoError(t, err)
	require.ErrorIs(t, id.Bind(netip.AddrPort{}), syscall.EAFNOSUPPORT)
	require.ErrorIs(t, id.Bind(netip.MustParseAddrPort("10.0.0.1:7")), errPortless)
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7")))
	require.Equal(t, -int(syscall.EIO), c.Next().Status)
}

var errPortless = errors.New("no port")

// A portless host has no port, and says so without an errno.
type portless struct{ *node }

func (*portless) Port(netip.Addr) (cm.Port, error) { return cm.Port{}, errPortless }

func TestListenUnbound(t *testing.T) {
	n, client, server := pair(t)
	id := server.id(tcp)
	require.NoError(t, id.Listen(0))
	require.Equal(t, netip.IPv4Unspecified(), id.LocalAddr().Addr())
	to := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.3"), id.LocalAddr().Port())
	require.NoError(t, client.resolve(tcp, to.String()).Connect(n.now, param(1, "")))
	n.run(time.Second)
	require.Equal(t, to, server.last(connRequest).ID.LocalAddr())
}

func TestResolve(t *testing.T) {
	for _, test := range []struct {
		name     string
		space    librdmacm.PortSpace
		src, dst string
		err      error // of ResolveAddr
		status   int   // of ADDR_ERROR
		local    string
		peer     string
	}{
		{name: "IPv4", dst: "10.0.0.2:7", local: "10.0.0.1", peer: "10.0.0.2:7"},
		{name: "IPv6", dst: "[2001:db8::2]:7", local: "2001:db8::1", peer: "[2001:db8::2]:7"},
		{name: "source", src: "10.0.0.1:0", dst: "10.0.0.2:7", local: "10.0.0.1", peer: "10.0.0.2:7"},
		{name: "source, any", src: "0.0.0.0:0", dst: "10.0.0.2:7", local: "10.0.0.1", peer: "10.0.0.2:7"},
		{name: "own address", dst: "10.0.0.1:7", local: "10.0.0.1", peer: "10.0.0.1:7"},
		{name: "any", dst: "0.0.0.0:7", local: "127.0.0.1", peer: "127.0.0.1:7"},
		{name: "any of IPv6", dst: "[::]:7", local: "::1", peer: "[::1]:7"},
		{name: "no way", dst: "192.0.2.1:7", err: syscall.ENETUNREACH},
		{name: "no device", dst: "198.51.100.1:7", status: -int(syscall.ENODEV)},
		{name: "device without the address", dst: "198.51.100.3:7", status: -int(syscall.ENODEV)},
		{name: "device without the loopback address", dst: "127.0.0.2:7", err: syscall.ENODEV},
		{name: "no IPoIB", space: librdmacm.RDMA_PS_IPOIB, dst: "10.0.0.2:7", status: -int(syscall.EINVAL)},
		{name: "nothing", err: syscall.EINVAL},
		{name: "families", src: "10.0.0.1:0", dst: "[2001:db8::2]:7", err: syscall.EINVAL},
		{name: "link-local, no link", dst: "[fe80::9]:7", err: syscall.EINVAL},
		{name: "source that is not here", src: "10.0.0.2:0", dst: "10.0.0.2:7", err: syscall.EADDRNOTAVAIL},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNetwork(t)
			p := n.node(1, "10.0.0.1", "2001:db8::1", "127.0.0.1", "::1").program("p")
			n.node(1, "10.0.0.2", "2001:db8::2", "fe80::9")
			space := test.space
			if space == 0 {
				space = tcp
			}
			id := p.id(space)
			var src, dst netip.AddrPort
			if test.src != "" {
				src = netip.MustParseAddrPort(test.src)
			}
			if test.dst != "" {
				dst = netip.MustParseAddrPort(test.dst)
			}
			require.ErrorIs(t, id.ResolveAddr(src, dst), test.err)
			n.run(0)
			if test.err != nil {
				require.Empty(t, p.log)
				return
			}
			if test.status != 0 {
				require.Equal(t, test.status, p.last(addrError).Status)
				require.ErrorIs(t, id.ResolveRoute(time.Second), syscall.EINVAL)
				require.ErrorIs(t, id.ResolveAddr(src, dst), nil, "it may try again")
				return
			}
			p.last(addrResolved)
			require.Equal(t, netip.MustParseAddr(test.local), id.LocalAddr().Addr())
			require.NotZero(t, id.LocalAddr().Port())
			require.Equal(t, netip.MustParseAddrPort(test.peer), id.PeerAddr())
			_, ok := id.Path()
			require.False(t, ok)
			require.ErrorIs(t, id.ResolveAddr(src, dst), syscall.EINVAL)
			require.ErrorIs(t, id.ResolveRoute(0), syscall.EINVAL)
			require.NoError(t, id.ResolveRoute(time.Second))
			n.run(0)
			p.last(routeResolved)
			path, ok := id.Path()
			require.True(t, ok)
			require.Equal(t, cm.Path{
				SGID: wire.GIDOf(id.LocalAddr().Addr()), DGID: wire.GIDOf(id.PeerAddr().Addr()),
				FlowLabel: (uint32(id.LocalAddr().Port())*31 + 7) & 0xFFFFF,
				HopLimit:  64, MTU: libibverbs.IBV_MTU_1024, PKey: 0xFFFF, PacketLifeTime: 18,
			}, path)
			require.ErrorIs(t, id.ResolveRoute(time.Second), syscall.EINVAL)
		})
	}
}

// TestStates makes every call in every state of an ID.
func TestStates(t *testing.T) {
	calls := map[string]func(*network, *cm.ID) error{
		"Bind": func(_ *network, id *cm.ID) error { return id.Bind(netip.MustParseAddrPort("10.0.0.1:9")) },
		"ResolveAddr": func(_ *network, id *cm.ID) error {
			return id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr))
		},
		"ResolveRoute": func(_ *network, id *cm.ID) error { return id.ResolveRoute(time.Second) },
		"Listen":       func(_ *network, id *cm.ID) error { return id.Listen(1) },
		"Connect":      func(n *network, id *cm.ID) error { return id.Connect(n.now, param(5, "")) },
		"Accept":       func(n *network, id *cm.ID) error { return id.Accept(n.now, param(6, "")) },
		"Establish":    func(n *network, id *cm.ID) error { return id.Establish(n.now) },
		"Reject":       func(n *network, id *cm.ID) error { return id.Reject(n.now, 0, nil) },
		"Disconnect":   func(n *network, id *cm.ID) error { return id.Disconnect(n.now) },
		"Notify":       func(_ *network, id *cm.ID) error { return id.Notify(libibverbs.IBV_EVENT_COMM_EST) },
		"INIT":         func(_ *network, id *cm.ID) error { _, _, err := id.InitQPAttr(libibverbs.IBV_QPS_INIT); return err },
		"RTR":          func(_ *network, id *cm.ID) error { _, _, err := id.InitQPAttr(libibverbs.IBV_QPS_RTR); return err },
		"RTS":          func(_ *network, id *cm.ID) error { _, _, err := id.InitQPAttr(libibverbs.IBV_QPS_RTS); return err },
		"state 7":      func(_ *network, id *cm.ID) error { _, _, err := id.InitQPAttr(7); return err },
		"join": func(_ *network, id *cm.ID) error {
			return id.JoinMulticast(netip.MustParseAddr("224.0.0.9"), 0, nil)
		},
		"TOS": func(_ *network, id *cm.ID) error {
			return id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_TOS, []byte{1})
		},
		"REUSEADDR": func(_ *network, id *cm.ID) error {
			return id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_REUSEADDR, yes)
		},
		"REUSEADDR off": func(_ *network, id *cm.ID) error {
			return id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_REUSEADDR, no)
		},
		"AFONLY": func(_ *network, id *cm.ID) error {
			return id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_AFONLY, yes)
		},
		"ACK_TIMEOUT": func(_ *network, id *cm.ID) error {
			return id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{1})
		},
		"WriteEvent": func(_ *network, id *cm.ID) error {
			return id.WriteEvent(librdmacm.RDMA_CM_EVENT_USER, 0, 0)
		},
		"Migrate": func(_ *network, id *cm.ID) error { return id.Migrate(id.Channel()) },
	}
	always := []string{"TOS", "ACK_TIMEOUT", "WriteEvent", "Migrate"}
	// What is not named fails with EINVAL.
	for _, test := range []struct {
		name  string
		reach func(n *network, client, server *program) *cm.ID
		works []string
		fails map[string]syscall.Errno
	}{
		{
			name:  "idle",
			reach: func(_ *network, c, _ *program) *cm.ID { return c.id(tcp) },
			works: []string{"Bind", "ResolveAddr", "Listen", "REUSEADDR", "REUSEADDR off", "AFONLY"},
		},
		{
			name: "bound to all",
			reach: func(n *network, c, _ *program) *cm.ID {
				id := c.id(tcp)
				require.NoError(n.t, id.Bind(netip.MustParseAddrPort("0.0.0.0:5")))
				return id
			},
			works: []string{"ResolveAddr", "Listen", "REUSEADDR", "AFONLY"},
		},
		{
			name: "bound to one",
			reach: func(n *network, c, _ *program) *cm.ID {
				id := c.id(tcp)
				require.NoError(n.t, id.Bind(netip.MustParseAddrPort("10.0.0.1:5")))
				return id
			},
			works: []string{"ResolveAddr", "Listen", "REUSEADDR", "AFONLY", "INIT", "RTR", "RTS"},
		},
		{
			name: "address resolved",
			reach: func(n *network, c, _ *program) *cm.ID {
				id := c.id(tcp)
				require.NoError(n.t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
				return id
			},
			works: []string{"ResolveRoute", "REUSEADDR", "INIT", "RTR", "RTS"},
		},
		{
			name:  "route resolved",
			reach: func(_ *network, c, _ *program) *cm.ID { return c.resolve(tcp, serverAddr) },
			works: []string{"Connect", "REUSEADDR", "INIT", "RTR", "RTS"},
		},
		{
			name:  "listening",
			reach: func(_ *network, _, s *program) *cm.ID { return s.listen(tcp, "10.0.0.2:99") },
		},
		{
			name:  "asking",
			reach: func(_ *network, c, _ *program) *cm.ID { return connect(c) },
			works: []string{"Reject", "Disconnect", "REUSEADDR", "INIT"},
		},
		{
			name: "asked",
			reach: func(n *network, c, s *program) *cm.ID {
				connect(c)
				n.run(soon)
				return s.last(connRequest).ID
			},
			works: []string{"Accept", "Reject", "Disconnect", "REUSEADDR", "INIT", "RTR", "RTS"},
		},
		{
			name: "accepted by the peer",
			reach: func(n *network, c, s *program) *cm.ID {
				accepting(s)
				id := connect(c)
				c.on = nil
				n.run(soon)
				c.last(connResponse)
				return id
			},
			works: []string{"Establish", "Reject", "Disconnect", "REUSEADDR", "INIT", "RTR", "RTS"},
		},
		{
			name: "accepting",
			reach: func(n *network, c, s *program) *cm.ID {
				accepting(s)
				connect(c)
				c.on = nil
				n.run(soon)
				return s.last(connRequest).ID
			},
			works: []string{"Notify", "Reject", "Disconnect", "REUSEADDR", "INIT", "RTR", "RTS"},
		},
		{
			name: "established",
			reach: func(n *network, c, s *program) *cm.ID {
				accepting(s)
				id := connect(c)
				n.run(soon)
				s.last(established)
				return id
			},
			works: []string{"Disconnect", "REUSEADDR", "INIT", "RTR", "RTS"},
			fails: map[string]syscall.Errno{"Notify": syscall.EISCONN},
		},
		{
			name: "disconnected",
			reach: func(n *network, c, s *program) *cm.ID {
				accepting(s)
				id := connect(c)
				n.run(soon)
				require.NoError(n.t, s.last(established).ID.Disconnect(n.now))
				n.run(soon)
				c.last(disconnected)
				return id
			},
			works: []string{"Disconnect", "REUSEADDR"},
		},
		{
			name: "rejected",
			reach: func(n *network, c, _ *program) *cm.ID {
				id := c.resolve(tcp, "10.0.0.2:98")
				require.NoError(n.t, id.Connect(n.now, param(4, "")))
				n.run(soon)
				c.last(rejected)
				return id
			},
			works: []string{"Disconnect", "REUSEADDR"},
		},
		{
			name: "without its device",
			reach: func(_ *network, c, _ *program) *cm.ID {
				id := connect(c)
				c.RemoveDevice(0, "device1")
				return id
			},
			fails: func() map[string]syscall.Errno {
				all := map[string]syscall.Errno{}
				for call := range calls {
					all[call] = syscall.ENXIO
				}
				return all
			}(),
		},
	} {
		for call, do := range calls {
			t.Run(test.name+" "+call, func(t *testing.T) {
				n, client, server := pair(t)
				listener := server.listen(tcp, serverAddr)
				id := test.reach(n, client, server)
				want := error(syscall.EINVAL)
				if errno, ok := test.fails[call]; ok {
					want = errno
				} else if slices.Contains(test.works, call) || slices.Contains(always, call) {
					want = nil
				}
				err := do(n, id)
				require.True(t, errors.Is(err, want) && (want != nil) == (err != nil), "%v, not %v", err, want)
				id.Destroy(n.now)
				listener.Destroy(n.now)
				for _, p := range []*program{client, server} {
					p.on = nil
					n.run(time.Hour)
					p.channel.Destroy(n.now)
					for _, e := range p.events {
						e.ID.Destroy(n.now)
					}
				}
				n.settle()
				n.empty()
			})
		}
	}
}

func TestOptions(t *testing.T) {
	_, client, _ := pair(t)
	id := client.id(tcp)
	for option, long := range map[librdmacm.IDOption][]byte{
		librdmacm.RDMA_OPTION_ID_TOS:         {1, 2},
		librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT: {},
		librdmacm.RDMA_OPTION_ID_REUSEADDR:   {1},
		librdmacm.RDMA_OPTION_ID_AFONLY:      {1, 0, 0, 0, 0},
	} {
		require.ErrorIs(t, id.SetOption(librdmacm.RDMA_OPTION_ID, option, long), syscall.EINVAL)
	}
	require.ErrorIs(t, id.SetOption(librdmacm.RDMA_OPTION_ID, 9, yes), syscall.ENOSYS)
	require.ErrorIs(t, id.SetOption(librdmacm.RDMA_OPTION_IB, 0, yes), syscall.ENOSYS)
	require.ErrorIs(t, client.id(udp).SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{1}),
		syscall.EINVAL, "datagrams have no timeout")
	require.NoError(t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_TOS, []byte{0x68}))
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, id.ResolveRoute(time.Second))
	path, _ := id.Path()
	require.Equal(t, uint8(0x68), path.TrafficClass)
}

// TestSettle checks parameters against what a device can do.
func TestSettle(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	id := client.resolve(tcp, serverAddr)
	settle := func(id *cm.ID, responder, initiator uint8) (uint8, uint8) {
		p := cm.ConnParam{ResponderResources: responder, InitiatorDepth: initiator}
		require.NoError(t, id.Settle(&p))
		return p.ResponderResources, p.InitiatorDepth
	}
	responder, initiator := settle(id, 255, 255)
	require.Equal(t, []uint8{128, 128}, []uint8{responder, initiator})
	responder, initiator = settle(id, 128, 0)
	require.Equal(t, []uint8{128, 0}, []uint8{responder, initiator})
	for _, p := range []cm.ConnParam{{ResponderResources: 129}, {InitiatorDepth: 254}} {
		require.ErrorIs(t, id.Settle(&p), syscall.EINVAL)
		require.ErrorIs(t, id.Connect(n.now, p), syscall.EINVAL)
	}
	require.NoError(t, id.Connect(n.now, cm.ConnParam{ResponderResources: 3, InitiatorDepth: 100}))
	n.run(soon)
	child := server.last(connRequest).ID
	responder, initiator = settle(child, 255, 255)
	require.Equal(t, []uint8{100, 3}, []uint8{responder, initiator}, "what the peer asked for")
	require.ErrorIs(t, child.Accept(n.now, cm.ConnParam{ResponderResources: 129}), syscall.EINVAL)
	require.NoError(t, child.Accept(n.now, cm.DefaultConnParam()), "it was not rejected for that")
	n.run(soon)
	e := client.last(connResponse)
	require.Equal(t, []uint8{3, 100}, []uint8{e.Conn.ResponderResources, e.Conn.InitiatorDepth})
}

// TestConnectData gives Connect more data than a request has room for.
func TestConnectData(t *testing.T) {
	n, client, _ := pair(t)
	id := client.resolve(tcp, serverAddr)
	require.ErrorIs(t, id.Connect(n.now, cm.ConnParam{PrivateData: make([]byte, 57)}), syscall.EINVAL)
	require.NoError(t, id.Connect(n.now, cm.ConnParam{PrivateData: make([]byte, 56)}), "and it may try again")
	xrc, err := client.NewID(client.channel, librdmacm.RDMA_PS_IB, libibverbs.IBV_QPT_XRC_RECV, nil)
	require.NoError(t, err)
	require.NoError(t, xrc.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, xrc.ResolveRoute(time.Second))
	require.ErrorIs(t, xrc.Connect(n.now, cm.ConnParam{}), syscall.EINVAL, "it only accepts")
}

func TestNewID(t *testing.T) {
	_, client, _ := pair(t)
	for space, want := range map[librdmacm.PortSpace]libibverbs.QpType{
		librdmacm.RDMA_PS_TCP:   libibverbs.IBV_QPT_RC,
		librdmacm.RDMA_PS_UDP:   libibverbs.IBV_QPT_UD,
		librdmacm.RDMA_PS_IPOIB: libibverbs.IBV_QPT_UD,
		librdmacm.RDMA_PS_IB:    libibverbs.IBV_QPT_UC,
	} {
		id, err := client.NewID(client.channel, space, libibverbs.IBV_QPT_UC, nil)
		require.NoError(t, err)
		require.Equal(t, want, id.QPType())
	}
	_, err := client.NewID(client.channel, 1, libibverbs.IBV_QPT_RC, nil)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// TestMigrate moves IDs with events that the program has not taken.
func TestMigrate(t *testing.T) {
	n, client, server := pair(t)
	listener := server.listen(tcp, serverAddr)
	waiting := server.NewChannel(func(int) {})
	require.NoError(t, listener.Migrate(waiting))
	other := server.id(tcp)
	require.NoError(t, other.Migrate(waiting))
	require.NoError(t, listener.WriteEvent(librdmacm.RDMA_CM_EVENT_USER, 3, 0x1122334455667788))
	require.NoError(t, other.WriteEvent(librdmacm.RDMA_CM_EVENT_USER, 4, 0))
	require.ErrorIs(t, other.WriteEvent(librdmacm.RDMA_CM_EVENT_ESTABLISHED, 0, 0), syscall.EINVAL)
	connect(client)
	n.run(soon)
	require.Equal(t, 3, waiting.Len())
	require.Empty(t, server.log)

	require.NoError(t, listener.Migrate(server.channel))
	require.Equal(t, 1, waiting.Len())
	n.run(soon)
	require.Equal(t, []string{"UNKNOWN EVENT (18)(3)", "CONNECT_REQUEST"}, server.log)
	require.Equal(t, librdmacm.RDMA_CM_EVENT_USER, server.events[0].Type)
	require.Equal(t, uint64(0x1122334455667788), server.events[0].Arg)
	child := server.last(connRequest).ID
	require.Same(t, server.channel, child.Channel(), "a request moves along")
	require.Equal(t, 2, listener.Reported())

	waiting.Destroy(n.now)
	require.Zero(t, waiting.Len())
	require.ErrorIs(t, other.Migrate(server.channel), syscall.ENXIO)
	server.channel.Destroy(n.now)
	n.run(soon)
	require.Equal(t, 28, client.last(rejected).Status)
}

// TestDestroyListener destroys one with requests that the program has not
// taken.
func TestDestroyListener(t *testing.T) {
	n, client, server := pair(t)
	listener := server.listen(tcp, serverAddr)
	kept := connect(client)
	n.run(soon)
	child := server.last(connRequest).ID
	require.NoError(t, listener.Migrate(server.NewChannel(func(int) {})))
	dropped := client.resolve(tcp, serverAddr)
	require.NoError(t, dropped.Connect(n.now, param(9, "")))
	n.run(soon)
	listener.Destroy(n.now)
	n.run(soon)
	require.Same(t, dropped, client.last(rejected).ID)
	require.NoError(t, child.Accept(n.now, param(8, "")), "a request that was taken is its own master")
	n.run(soon)
	require.Same(t, kept, client.last(connResponse).ID)
	child.Destroy(n.now)
	kept.Destroy(n.now)
	dropped.Destroy(n.now)
	n.settle()
	n.empty()
}

func TestMulticast(t *testing.T) {
	n, client, _ := pair(t)
	id := client.id(udp)
	group, sendOnly := netip.MustParseAddr("224.1.2.3"), librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
	require.ErrorIs(t, id.JoinMulticast(group, 0, nil), syscall.EINVAL, "not bound")
	require.NoError(t, id.Bind(netip.MustParseAddrPort("10.0.0.1:0")))
	require.ErrorIs(t, id.JoinMulticast(netip.Addr{}, 0, nil), syscall.EINVAL)
	require.ErrorIs(t, id.JoinMulticast(netip.IPv4Unspecified(), 0, nil), syscall.EINVAL)
	require.ErrorIs(t, id.JoinMulticast(group, 2, nil), syscall.EINVAL)
	require.ErrorIs(t, id.JoinMulticast(netip.MustParseAddr("ff02::1"), 0, nil), syscall.Errno(524))
	require.ErrorIs(t, id.JoinMulticast(netip.MustParseAddr("224.0.0.99"), 0, nil), syscall.ENOBUFS, "the host's")
	_, err := id.LeaveMulticast(group)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)

	require.NoError(t, id.JoinMulticast(group, 0, "first"))
	require.NoError(t, id.JoinMulticast(group, sendOnly, "second"))
	require.Equal(t, map[netip.Addr]int{group: 1}, client.groups, "an ID that only sends is no member")
	n.run(0)
	require.Equal(t, []string{"MULTICAST_JOIN", "MULTICAST_JOIN"}, client.log)
	e := client.events[0]
	require.Equal(t, []any{multicastJoin, id, "first"}, []any{e.Type, e.ID, e.Context})
	require.Equal(t, []uint32{0xFFFFFF, librdmacm.RDMA_UDP_QKEY}, []uint32{e.UD.QPNum, e.UD.QKey})
	require.Equal(t, [16]byte(wire.GIDOf(group)), *e.UD.AhAttr.Grh.Dgid.Raw())
	require.Equal(t, []uint8{1, 1, 64, 1}, []uint8{e.UD.AhAttr.IsGlobal, e.UD.AhAttr.Grh.SgidIndex, e.UD.AhAttr.Grh.HopLimit, e.UD.AhAttr.PortNum})
	require.Equal(t, "second", client.events[1].Context)
	reported, err := id.LeaveMulticast(group)
	require.NoError(t, err)
	require.Equal(t, 1, reported)
	require.Equal(t, map[netip.Addr]int{group: 1}, client.groups)

	require.NoError(t, id.Migrate(client.NewChannel(func(int) {})))
	require.NoError(t, id.JoinMulticast(netip.MustParseAddr("224.1.2.4"), 0, nil))
	require.Equal(t, 1, id.Channel().Len())
	reported, err = id.LeaveMulticast(netip.MustParseAddr("224.1.2.4"))
	require.NoError(t, err)
	require.Zero(t, reported)
	require.Zero(t, id.Channel().Len(), "an event that was not taken is dropped")
	id.Destroy(n.now)
	n.empty()

	stream := client.id(tcp)
	require.NoError(t, stream.Bind(netip.MustParseAddrPort("10.0.0.1:0")))
	require.ErrorIs(t, stream.JoinMulticast(group, 0, nil), syscall.EINVAL)
}
