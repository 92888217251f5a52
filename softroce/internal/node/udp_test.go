// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/stat"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func TestParseNetwork(t *testing.T) {
	for _, test := range []struct {
		options string
		named   []string
		none    bool
		wrong   string
	}{
		{options: "", none: true},
		{options: "udp"},
		{options: "udp=192.0.2.1", named: []string{"192.0.2.1"}},
		{options: "udp=192.0.2.1,2001:db8::1,fe80::1%eth0", named: []string{"192.0.2.1", "2001:db8::1", "fe80::1%eth0"}},
		{options: "udp=::ffff:192.0.2.1", named: []string{"192.0.2.1"}},
		{options: "tcp", wrong: `unknown network "tcp": want udp, or udp= and addresses of this machine`},
		{options: "udp:", wrong: `unknown network "udp:": want udp, or udp= and addresses of this machine`},
		{options: "udp=", wrong: `"" is not an address`},
		{options: "udp=192.0.2.1,", wrong: `"" is not an address`},
		{options: "udp=eth0", wrong: `"eth0" is not an address`},
		{options: "udp=0.0.0.0", wrong: "0.0.0.0 is not a unicast address"},
		{options: "udp=ff02::1", wrong: "ff02::1 is not a unicast address"},
	} {
		u, err := parseNetwork(test.options)
		if test.wrong != "" {
			require.EqualError(t, err, test.wrong)
			continue
		}
		require.NoError(t, err, test.options)
		require.Equal(t, test.none, u == nil)
		if u != nil {
			var named []string
			for _, a := range u.named {
				named = append(named, a.String())
			}
			require.Equal(t, test.named, named)
		}
	}
}

// TestNoIdentification has a system whose packets have identifications that the
// sender cannot know.
func TestNoIdentification(t *testing.T) {
	pid := os.Getpid()
	own := netip.AddrFrom4([4]byte{127, 192 + byte(pid>>14&31), byte(pid >> 6), byte(pid << 2)})
	u, err := parseNetwork("udp=" + own.String())
	require.NoError(t, err)
	unknown := errors.New("the identification is 7")
	require.ErrorIs(t, u.open(func(a netip.Addr) error {
		require.Equal(t, own, a)
		return unknown
	}), unknown)
	require.Empty(t, u.sockets)

	u.ip4Error = nil
	require.NoError(t, u.open(link.CheckIdentification))
	require.Len(t, u.sockets, 1)
	other, err := parseNetwork("udp=" + own.String())
	require.NoError(t, err)
	require.ErrorIs(t, other.open(link.CheckIdentification), syscall.EADDRINUSE)
	u.close()
	require.NoError(t, other.open(link.CheckIdentification))
	other.close()
}

func TestPackets(t *testing.T) {
	for mtu, n := range map[libibverbs.Mtu]int{
		libibverbs.IBV_MTU_256: 128, libibverbs.IBV_MTU_1024: 128, libibverbs.IBV_MTU_2048: 64, libibverbs.IBV_MTU_4096: 32,
	} {
		require.Equal(t, n, packets(128<<10, mtu), mtu)
	}
}

func TestWindowOfBuffer(t *testing.T) {
	for buffer, bytes := range map[int]int{0: 128 << 10, 416 << 10: 128 << 10, 4 << 20: 256 << 10, 8 << 20: 512 << 10, 1 << 30: 512 << 10} {
		require.Equal(t, bytes, window(buffer), buffer)
	}
}

// The addresses of a node that has no socket, and of a host that sends to it.
var (
	ownAddr   = netip.MustParseAddr("192.0.2.1")
	otherAddr = netip.MustParseAddr("192.0.2.2")
)

// TestInterfaceDown has a program look at the addresses while the interface is
// down. The address stays until the machine does not have it any more.
func TestInterfaceDown(t *testing.T) {
	type step struct {
		command string
		has     bool
	}
	for name, steps := range map[string][]step{
		"stays":   {{"ip link set lo down", true}, {"ip link set lo up", true}},
		"removed": {{"ip addr del 192.0.2.1/32 dev lo", false}, {"ip addr add 192.0.2.1/32 dev lo", true}},
		"removed while down": {
			{"ip link set lo down", true}, {"ip addr del 192.0.2.1/32 dev lo", false}, {"ip addr add 192.0.2.1/32 dev lo", false}, {"ip link set lo up", true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // and the thread ends with the goroutine, and the network namespace with it
			if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
				require.Empty(t, os.Getenv("RDMA_VM"), err)
				t.Skip("this process cannot have a network namespace: ", err)
			}
			command := func(line string) {
				out, err := exec.Command("sh", "-c", line).CombinedOutput()
				require.NoError(t, err, "%s: %s", line, out)
			}
			command("ip addr add 192.0.2.1/32 dev lo; ip link set lo up")
			n := newWired(t)
			u := n.internet
			u.named, u.others = nil, true
			var err error
			u.poller, err = link.NewPoller(n.worker.bell)
			require.NoError(t, err)
			device := n.devices.cards[0].current
			n.devices.refreshGIDs()
			gid := wire.GIDOf(ownAddr)
			require.True(t, device.Has(gid))
			for _, step := range steps {
				command(step.command)
				n.devices.refreshGIDs()
				require.Equal(t, step.has, device.Has(gid), step.command)
				require.Equal(t, step.has, u.sockets[gid] != nil, step.command)
				require.Equal(t, step.has, u.owns(gid), step.command)
				u.send(&wire.Packet{Opcode: wire.RCAck, SGID: gid, DGID: wire.GIDOf(otherAddr)})
				require.Same(t, u.sockets[gid], u.last.socket, step.command)
			}
			u.close()
		})
	}
}

// program is a program without objects.
type program struct{ late bool }

func (*program) CompletionEvent(*engine.CQ, uint32)           {}
func (*program) AsyncEvent(*engine.Device, engine.AsyncEvent) {}
func (p *program) SendLate() bool                             { return p.late }
func (*program) Dropped(uint32)                               {}
func (*program) Overwritten(uint32, uint32)                   {}
func (*program) Writes(uint32)                                {}
func (*program) Removed(*Card)                                {}
func (*program) Objects(*Card) stat.Objects                   { return stat.Objects{} }

// newDoorbell returns a doorbell that no C code has.
func newDoorbell() Doorbell {
	return Doorbell{Word: new(uint32), Rung: new(unsafe.Pointer), Arms: new(uint32), Dozing: new(uint32)}
}

// wired is a node on the network of all machines, without sockets and without a
// worker.
type wired struct {
	*Node
	program  *program
	internet *internet
}

func newWired(t testing.TB) *wired {
	t.Helper()
	p := &program{}
	n := newNode(p, newDoorbell())
	n.slot = 1
	u := &internet{
		n: n, named: []netip.Addr{ownAddr}, sockets: map[wire.GID]*link.Socket{},
		reachable: func(netip.Addr) bool { return true }, answersBy: func(netip.Addr, int, netip.Addr) bool { return true },
	}
	n.network = u
	d := engine.New(engine.Config{
		Packets: &n.path.packets, Send: n.path.send, Room: u.room, GUID: 1, MTU: libibverbs.IBV_MTU_1024, Window: 64,
	})
	n.devices.cards[0].current, n.devices.inUse = d, []*engine.Device{d}
	require.NoError(t, d.SetGID(0, engine.GIDEntry{GID: wire.GIDOf(ownAddr)}))
	n.cm.start()
	return &wired{n, p, u}
}

// sealed returns a packet as it is on the wire.
func sealed(p *wire.Packet, from netip.Addr) []byte {
	b := p.Append(nil)
	wire.NewFlow(wire.GIDOf(from), wire.GIDOf(ownAddr), wire.Port).Seal(b, 0)
	return b
}

func (w *wired) receive(from netip.Addr, datagrams ...[]byte) {
	var batch []link.Datagram
	for _, b := range datagrams {
		batch = append(batch, link.Datagram{From: netip.AddrPortFrom(from, wire.Port), Data: b, HopLimit: 64})
	}
	w.Lock()
	w.internet.receiveDatagrams(ownAddr, verify(ownAddr, batch))
	w.Unlock()
}

// work does what is due.
func (w *wired) work(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.advance(now) <= now {
	}
}

// listen listens at a port of TCP's port space.
func (w *wired) listen(t testing.TB, addr netip.Addr, port uint16, backlog int) *manager.Channel {
	t.Helper()
	channel := w.cm.manager.NewChannel(func(int) {})
	id, err := w.cm.manager.NewID(channel, librdmacm.RDMA_PS_TCP, 0, nil)
	require.NoError(t, err)
	require.NoError(t, id.Bind(netip.AddrPortFrom(addr, port)))
	require.NoError(t, id.Listen(backlog))
	return channel
}

func request(number uint32, port uint16) *wire.REQ {
	req := &wire.REQ{
		Header: wire.Header{TID: uint64(number)}, LocalCommID: number, LocalCAGUID: 7, LocalQPN: number & 0xFFFFFF,
		ServiceID: wire.ServiceID(uint16(librdmacm.RDMA_PS_TCP), port), PathMTU: uint8(libibverbs.IBV_MTU_1024), RetryCount: 7,
		RemoteResponseTimeout: 20, LocalResponseTimeout: 20, MaxCMRetries: 15, PKey: wire.DefaultPKey,
		Primary: wire.Path{LocalGID: wire.GIDOf(otherAddr), RemoteGID: wire.GIDOf(ownAddr), HopLimit: 64, AckTimeout: 19},
	}
	var header [wire.IPHeaderLen]byte
	wire.IPHeader{Src: otherAddr, Dst: ownAddr, SrcPort: 1}.Put(&header)
	copy(req.PrivateData[:], header[:])
	return req
}

func messagePacket(m wire.Message) *wire.Packet {
	data := wire.MAD(m)
	return &wire.Packet{
		Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI, SrcQP: wire.GSI, QKey: wire.GSIQKey, Payload: [][]byte{data[:]},
	}
}

// TestStrictness sends requests for connections with one fault each.
func TestStrictness(t *testing.T) {
	for name, test := range map[string]struct {
		arrives bool
		change  func(p *wire.Packet)
		spoil   func(b []byte) []byte
	}{
		"right":             {arrives: true},
		"another Q_Key":     {change: func(p *wire.Packet) { p.QKey++ }},
		"another source":    {change: func(p *wire.Packet) { p.SrcQP = 2 }},
		"another partition": {change: func(p *wire.Packet) { p.PKey = 0x8001 }},
		"limited member":    {arrives: true, change: func(p *wire.Packet) { p.PKey = 0x7FFF }},
		"immediate data":    {change: func(p *wire.Packet) { p.Opcode = wire.UDSendOnlyImm }},
		"multicast":         {change: func(p *wire.Packet) { p.DestQP = wire.MulticastQP }},
		"a queue pair":      {change: func(p *wire.Packet) { p.DestQP = 16 }},
		"short":             {change: func(p *wire.Packet) { p.Payload[0] = p.Payload[0][:252] }},
		"empty":             {change: func(p *wire.Packet) { p.Payload = nil }},
		"wrong ICRC":        {spoil: func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
		"a bit":             {spoil: func(b []byte) []byte { b[100] ^= 1; return b }},
		"cut":               {spoil: func(b []byte) []byte { return b[:len(b)-4] }},
		"odd":               {spoil: func(b []byte) []byte { return b[:len(b)-1] }},
		"nothing":           {spoil: func([]byte) []byte { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWired(t)
			events := w.listen(t, ownAddr, 7174, 10)
			p := messagePacket(request(1, 7174))
			if test.change != nil {
				test.change(p)
			}
			b := sealed(p, otherAddr)
			if test.spoil != nil {
				b = test.spoil(b)
			}
			w.receive(otherAddr, b)
			w.work(0)
			require.Equal(t, test.arrives, events.Next() != nil)
		})
	}
}

// TestFlood has peers that ask for connections without end, at a port with a
// listener and at others. The node keeps no more than the backlog.
func TestFlood(t *testing.T) {
	w := newWired(t)
	const backlog = 64
	events := w.listen(t, ownAddr, 7174, backlog)
	measure := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	number := uint32(0)
	round := func(messages int, work bool) {
		for range messages {
			number++
			port := uint16(7174)
			if number%4 == 0 {
				port++
			}
			w.receive(otherAddr, sealed(messagePacket(request(number, port)), otherAddr))
			if work {
				w.work(time.Duration(number) * time.Microsecond)
			}
		}
	}
	round(1000, true)
	before := measure()
	round(6000, true)
	round(maxMessages+500, false) // faster than the node can look at them
	require.LessOrEqual(t, len(w.cm.mads), maxMessages)
	w.work(time.Second)
	require.Less(t, measure(), before+8<<20)
	require.Equal(t, backlog, events.Len())
}

// TestNoHostAtTheAddress resolves addresses of hosts of which the system learns
// after a while, or never.
func TestNoHostAtTheAddress(t *testing.T) {
	for name, test := range map[string]struct {
		silent int // looks by which the system does not know the host
		want   librdmacm.CmEventType
		status int
	}{
		"there":   {0, librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED, 0},
		"late":    {3, librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED, 0},
		"nowhere": {1 << 30, librdmacm.RDMA_CM_EVENT_ADDR_ERROR, -int(syscall.ETIMEDOUT)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWired(t)
			there := netip.MustParseAddr("127.0.0.1")
			require.NoError(t, w.devices.cards[0].current.SetGID(1, engine.GIDEntry{GID: wire.GIDOf(there)}))
			looks := 0
			w.internet.reachable = func(dst netip.Addr) bool {
				require.Equal(t, there, dst)
				looks++
				return looks > test.silent
			}
			channel := w.cm.manager.NewChannel(func(int) {})
			id, err := w.cm.manager.NewID(channel, librdmacm.RDMA_PS_TCP, 0, nil)
			require.NoError(t, err)
			dst := netip.AddrPortFrom(there, 7)
			w.began = time.Now().Add(-time.Hour)
			require.NoError(t, w.ResolveAddr(id, netip.AddrPort{}, dst, time.Minute))
			require.Equal(t, test.silent > 0, w.Inquires(id))
			if test.silent > 0 {
				require.Nil(t, channel.Next())
				require.ErrorIs(t, w.ResolveAddr(id, netip.AddrPort{}, dst, time.Minute), syscall.EINVAL)
			}
			var e *manager.Event
			for now := w.Now(); e == nil && now < 2*time.Hour; now += time.Millisecond {
				w.mu.Lock()
				next := w.cm.inquire(now)
				w.mu.Unlock()
				e = channel.Next()
				require.Equal(t, e != nil, next == never)
				if e == nil {
					now = max(now, next)
				}
			}
			require.Equal(t, test.want, e.Type)
			require.Equal(t, test.status, e.Status)
			require.Less(t, looks, 650, "a minute is some hundred looks")
			require.False(t, w.Inquires(id))
		})
	}
}

// FuzzDatagrams sends a node what any host may send: packets with a right ICRC,
// and anything else. Two bytes with its length precede each. The node has a
// listener. The engine has such a test of its own for what comes to queue
// pairs.
func FuzzDatagrams(f *testing.F) {
	seed := func(packets ...*wire.Packet) {
		var all []byte
		for _, p := range packets {
			b := p.Append(nil)
			all = append(append(all, byte(len(b)>>8), byte(len(b))), b...)
		}
		f.Add(all, true)
		f.Add(all, false)
	}
	req := request(5, 7174)
	seed(messagePacket(req), messagePacket(req))
	seed(
		messagePacket(req), messagePacket(&wire.REJ{LocalCommID: 5, Reason: wire.RejectTimeout}), messagePacket(&wire.DREQ{LocalCommID: 5}),
		messagePacket(&wire.RTU{LocalCommID: 5}), messagePacket(&wire.MRA{RemoteCommID: 5}), messagePacket(&wire.DREP{LocalCommID: 5}),
	)
	seed(messagePacket(&wire.SIDRReq{RequestID: 1, ServiceID: wire.ServiceID(uint16(librdmacm.RDMA_PS_UDP), 7174)}), messagePacket(&wire.SIDRRep{}))
	seed(&wire.Packet{Opcode: wire.RCSendOnly, DestQP: 16, PKey: wire.DefaultPKey, Payload: [][]byte{make([]byte, 100)}, AckReq: true})
	seed(&wire.Packet{Opcode: wire.RCReadRequest, DestQP: 16, PKey: wire.DefaultPKey, Length: 1 << 20})
	seed(&wire.Packet{Opcode: wire.UDSendOnly, DestQP: wire.MulticastQP, PKey: wire.DefaultPKey, Payload: [][]byte{make([]byte, 9)}})
	f.Fuzz(func(t *testing.T, all []byte, right bool) {
		w := newWired(t)
		events := w.listen(t, ownAddr, 7174, 4)
		flow := wire.NewFlow(wire.GIDOf(otherAddr), wire.GIDOf(ownAddr), wire.Port)
		for now := time.Duration(0); len(all) >= 2; now += 10 * time.Millisecond {
			size := min(int(all[0])<<8|int(all[1]), len(all)-2, 4352)
			b := append([]byte(nil), all[2:2+size]...)
			all = all[2+size:]
			if right && len(b) >= 16 && len(b)%4 == 0 {
				flow.Seal(b, 0)
			}
			w.receive(otherAddr, b)
			w.work(now)
		}
		require.LessOrEqual(t, events.Len(), 4, "more requests than the backlog")
		for e := events.Next(); e != nil; e = events.Next() {
			e.ID.Destroy(time.Second)
		}
	})
}

// A packet that stands for several fits no datagram. It is lost if the node has
// lost the address to which it goes.
func TestMergedPacketIsNotSent(t *testing.T) {
	w := newWired(t)
	w.internet.sockets[wire.GIDOf(ownAddr)] = &link.Socket{}
	p := w.path.packets.Get()
	p.SGID, p.DGID, p.Opcode, p.More = wire.GIDOf(ownAddr), wire.GIDOf(otherAddr), wire.RCWriteFirst, 15
	p.Payload = append(p.Payload, make([]byte, 1<<16))
	w.internet.carry(p)
	require.Empty(t, w.internet.used)
	require.Zero(t, p.More, "it is unused again")
}
