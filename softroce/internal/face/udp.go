// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// #include "ring.h"
import "C"

// internet is the network of all machines: UDP, with a socket for each address of the node. The addresses belong to
// this process alone, so whoever has one is the node that packets go to.
type internet struct {
	named   []netip.Addr // nil: all addresses of the machine but loopback ones
	lack    error        // why IPv4 cannot be had
	sockets map[wire.GID]*link.Socket
	poller  *link.Poller                // since wait
	used    []*link.Socket              // have something to flush
	busy    atomic.Pointer[link.Socket] // has received last
	// reachable reports whether the system knows how to send to a host. If not, it finds out, if the host is there.
	reachable func(dst netip.Addr) bool
	// answers reports whether the system sends from an own address to a host by
	// a link.
	answers func(own netip.Addr, link int, peer netip.Addr) bool
	links   map[wire.GID]int // of the own addresses; 0: those of loopback interfaces, which others reach by any

	// The flow of the packet that was sent last. Most have the same as the one before.
	src, dst wire.GID
	flow     wire.Flow
}

// outside is the number of all nodes of other machines, which are told apart by their addresses.
const outside = link.Slots

// Queue pairs have numbers from these on the network of all machines.
const firstOutside, lastOutside = 1 << 8, 1<<24 - 2

// DeviceVariable is the environment variable that says what network a device has that nobody opened: that of a
// program which is not Go.
const DeviceVariable = "VERBENA_DEVICE"

// Open decides which network the node is in: the machine's if options are empty, else "udp" or "udp=" and addresses, with commas
// between them. If the node is there, it is too late for another.
func Open(options string) error {
	choices.Lock()
	defer choices.Unlock()
	if choices.opened && options == "" || choices.opened && options == choices.network {
		return nil
	}
	if choices.made || choices.opened {
		return errors.New("the device is in use already")
	}
	u, err := parseNetwork(options)
	var l *link.Link
	switch {
	case err != nil:
	case u != nil:
		err = u.open(link.CheckIdentification)
	default:
		l, err = link.Reserve()
	}
	if err != nil {
		return err
	}
	choices.opened, choices.network, choices.internet, choices.link = true, options, u, l
	return nil
}

// chosenInternet returns the network that was opened, or that the environment wants; nil if that is the machine's.
func chosenInternet() (*internet, error) {
	if name, options, _ := strings.Cut(os.Getenv(DeviceVariable), ":"); name == "soft" && !opened() {
		if err := Open(options); err != nil {
			return nil, fmt.Errorf("%s=%s:%s: %w", DeviceVariable, name, options, err)
		}
	}
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	return choices.internet, nil
}

// chosenLink returns the link to the machine's network that was opened, nil if none was.
func chosenLink() *link.Link {
	choices.Lock()
	defer choices.Unlock()
	return choices.link
}

func opened() bool {
	choices.Lock()
	defer choices.Unlock()
	return choices.opened
}

// parseNetwork returns nil for the machine's network.
func parseNetwork(options string) (*internet, error) {
	if options == "" {
		return nil, nil
	}
	network, list, some := strings.Cut(options, "=")
	if network != "udp" {
		return nil, fmt.Errorf("there is no network %q, only udp, and udp= with addresses of this machine", network)
	}
	u := &internet{sockets: map[wire.GID]*link.Socket{}, reachable: link.Reachable, answers: link.Answers}
	if !some {
		return u, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address", text)
		}
		if a = a.Unmap(); a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("%v is an address that no port can have", a)
		}
		u.named = append(u.named, a)
	}
	return u, nil
}

// machineAddress is one that the machine has.
type machineAddress struct {
	addr   netip.Addr // with the zone that it needs
	netDev uint32     // index of the interface, 0 if it is on none
	mtu    int        // of the interface
	isLoop bool       // the interface is a loopback one
}

// machineAddresses returns the addresses of interfaces that are up.
func machineAddresses() ([]machineAddress, error) {
	return interfaceAddresses(func(i net.Interface) bool { return i.Flags&net.FlagUp != 0 })
}

// interfaceAddresses returns the addresses of interfaces that are wanted. The last ones are those of loopback interfaces: programs that do
// not choose take the first, which others can reach.
func interfaceAddresses(wanted func(net.Interface) bool) (all []machineAddress, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, loopback := range []bool{false, true} {
		for _, i := range interfaces {
			if !wanted(i) || i.Flags&net.FlagLoopback != 0 != loopback {
				continue
			}
			addresses, err := i.Addrs()
			if err != nil {
				continue
			}
			for _, a := range addresses {
				ip, ok := a.(*net.IPNet)
				if !ok {
					continue
				}
				addr, ok := netip.AddrFromSlice(ip.IP)
				if !ok {
					continue
				}
				if addr = addr.Unmap(); addr.Is6() && addr.IsLinkLocalUnicast() {
					addr = addr.WithZone(fmt.Sprint(i.Index))
				}
				all = append(all, machineAddress{addr, uint32(i.Index), i.MTU, loopback})
			}
		}
	}
	return all, nil
}

// wanted returns the addresses that the node is to have. It keeps one whose interface is down for a while: nobody would tell it when the interface is
// up again, and nothing would arrive.
func (u *internet) wanted() (all []machineAddress, err error) {
	machine, err := machineAddresses()
	if err != nil {
		return nil, err
	}
	if u.named == nil {
		down, err := interfaceAddresses(func(i net.Interface) bool { return i.Flags&net.FlagUp == 0 })
		if err != nil {
			return nil, err
		}
		machine = append(machine, slices.DeleteFunc(down, func(a machineAddress) bool { return u.sockets[wire.GIDOf(a.addr)] == nil })...)
		machine = slices.DeleteFunc(machine, func(a machineAddress) bool { return a.addr.IsLoopback() || u.lack != nil && a.addr.Is4() })
		return machine, nil
	}
	for _, named := range u.named {
		i := slices.IndexFunc(machine, func(a machineAddress) bool { return a.addr.WithZone("") == named.WithZone("") })
		if i < 0 { // such as 127.0.0.2
			all = append(all, machineAddress{addr: named, mtu: 1 << 16})
		} else {
			all = append(all, machine[i])
		}
	}
	return all, nil
}

// open opens the sockets of the addresses. check says whether an IPv4 address can be used.
func (u *internet) open(check func(netip.Addr) error) error {
	wanted, err := u.wanted()
	if err != nil {
		return err
	}
	for _, a := range wanted {
		err := u.add(a.addr)
		if err == nil || u.named == nil && errors.Is(err, syscall.EADDRNOTAVAIL) { // it may be there in a moment
			continue
		}
		u.close()
		return err
	}
	for g, s := range u.sockets { // the answer is the same for all
		if g.Is4() {
			if err := check(s.Addr()); err != nil {
				u.lack = fmt.Errorf("IPv4 cannot be used, as checksums of packets cover what only the system knows: %w", err)
			}
			break
		}
	}
	for g, s := range u.sockets {
		if g.Is4() && u.lack != nil {
			s.Close()
			delete(u.sockets, g)
		}
	}
	switch {
	case u.lack != nil && (u.named != nil || len(u.sockets) == 0):
		u.close()
		return u.lack
	case len(u.sockets) > 0:
		return nil
	}
	return fmt.Errorf("no interface that is up has an address, other than loopback ones: %w", syscall.EADDRNOTAVAIL)
}

// add opens the socket of an address.
func (u *internet) add(a netip.Addr) error {
	g := wire.GIDOf(a)
	if u.sockets[g] != nil {
		return nil
	}
	s, err := link.OpenUDP(a, wire.Renumber)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("UDP port %d of %v is taken: by another process with this device, which must have other addresses, or by the kernel "+
			"(rmmod rdma_rxe frees it): %w", wire.Port, a, syscall.EADDRINUSE)
	case err != nil:
		return fmt.Errorf("%v: %w", a, err)
	}
	u.sockets[g] = s
	return nil
}

func (u *internet) close() {
	for g, s := range u.sockets {
		s.Close()
		delete(u.sockets, g)
	}
}

// start makes the sockets of the network receive.
func (n *node) start(u *internet) {
	for _, s := range u.sockets {
		n.attend(s)
	}
}

// wait makes the owner of the bell wait for sockets, too.
func (u *internet) wait(bell *link.Bell) (err error) {
	if u.poller, err = link.NewPoller(bell); err == nil {
		C.soft_set_event(C.int(u.poller.Event()))
	}
	return err
}

func (n *node) attend(s *link.Socket) {
	own := s.Addr()
	s.Start(n.internet.poller, func(batch []link.Datagram) {
		n.internet.busy.Store(s)
		if batch = verify(own, batch); len(batch) == 0 {
			return
		}
		n.mu.Lock()
		n.receiveDatagrams(own, batch)
		n.step()
		n.mu.Unlock()
	}, func(to netip.Addr, quote []byte) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.receiveRefusal(own, to, quote)
		n.step()
	}, n.resume)
}

// receiveRefusal takes the beginning of a packet that a host has refused, since no process has the port there any more.
func (n *node) receiveRefusal(own, to netip.Addr, quote []byte) {
	p := n.packets.Get()
	defer n.packets.Put(p)
	switch {
	case p.ParseQuote(quote, own, to) != nil:
	case p.DestQP != wire.GSI:
		for _, d := range n.inUse {
			d.Unreachable(p)
		}
	case len(p.Payload) == 1:
		n.cm.manager.Unreachable(n.now(), manager.MAD{Node: outside, Src: p.DGID.Addr(), Dst: p.SGID.Addr(), Data: p.Payload[0]})
	}
}

// openGroup opens the socket of a multicast group.
func (n *node) openGroup(group netip.Addr) (*link.Socket, error) {
	var own []netip.Addr
	for _, s := range n.internet.sockets {
		own = append(own, s.Addr())
	}
	s, err := link.OpenGroup(group, own)
	if err != nil {
		return nil, err
	}
	n.attend(s)
	return s, nil
}

// resume lets queue pairs go on that found no room in a socket.
func (n *node) resume() {
	n.mu.Lock()
	for _, d := range n.inUse {
		d.Resume()
	}
	n.mu.Unlock()
	n.bell.Ring()
}

// mtu returns the port's MTU: the largest that fits all interfaces with the headers.
func (u *internet) mtu() libibverbs.Mtu {
	const headers = 80 // as Linux counts
	mtu := libibverbs.IBV_MTU_4096
	wanted, err := u.wanted()
	if err != nil {
		return libibverbs.IBV_MTU_256
	}
	for _, a := range wanted {
		for mtu > libibverbs.IBV_MTU_256 && 128<<mtu > a.mtu-headers {
			mtu--
		}
	}
	return mtu
}

// window returns how many bytes of a queue pair may be under way where sockets' buffers are as large as that of this device: so many fit into one several times,
// in which packets take twice as much as they are long. The peer's may be smaller; then some get lost, and the queue pair has fewer under way.
func window(buffer int) int {
	const least, most, share = 128 << 10, 512 << 10, 16
	return max(least, min(most, buffer/share))
}

// packets returns how many packets bytes are.
func packets(bytes int, mtu libibverbs.Mtu) int {
	return bytes / (128 << max(mtu, libibverbs.IBV_MTU_1024))
}

// refreshSockets opens sockets of addresses that are new, and closes those of addresses that are gone. It returns the addresses that the
// node has then.
func (n *node) refreshSockets() ([]machineAddress, error) {
	u := n.internet
	wanted, err := u.wanted()
	if err != nil {
		return nil, err
	}
	have := map[wire.GID]bool{}
	u.links = map[wire.GID]int{}
	wanted = slices.DeleteFunc(wanted, func(a machineAddress) bool {
		g := wire.GIDOf(a.addr)
		if have[g] {
			return true
		}
		if u.sockets[g] == nil {
			if u.add(a.addr) != nil {
				return true
			}
			n.attend(u.sockets[g])
		}
		have[g] = true
		if !a.isLoop {
			u.links[g] = int(a.netDev)
		}
		return false
	})
	for g, s := range u.sockets {
		if !have[g] {
			s.Close()
			delete(u.sockets, g)
		}
	}
	for _, d := range n.inUse { // queue pairs may wait for room in one of those
		d.Resume()
	}
	return wanted, nil
}

// sendOut sends a packet to another machine, or another process of this one.
func (n *node) sendOut(p *wire.Packet) {
	u := n.internet
	s := u.sockets[p.SGID]
	if s == nil {
		return
	}
	n.note(s)
	if u.src != p.SGID || u.dst != p.DGID {
		u.src, u.dst, u.flow = p.SGID, p.DGID, wire.NewFlow(p.SGID, p.DGID, wire.Port)
	}
	s.Send(p.DGID.Addr(), p.TrafficClass, p.HopLimit, p.Size(), func(b []byte, id uint16) bool {
		if !marshal(b, p) {
			return false
		}
		u.flow.Seal(b, id)
		return true
	})
	if !slices.Contains(u.used, s) {
		u.used = append(u.used, s)
	}
}

// announce shows in /proc/net/unix what the node listens at: the addresses are this process's, so there is nobody to claim
// ports from. It may return nil.
func (u *internet) announce(name string) io.Closer {
	closer, err := link.Announce(fmt.Sprintf("udp/%d/%s", os.Getpid(), name))
	if err != nil {
		return nil
	}
	return closer
}

// poll takes what has arrived where something has arrived last, and reports whether there was something.
func (u *internet) poll() bool {
	s := u.busy.Load()
	if s == nil {
		return false
	}
	if s.Blocked() {
		s.Proceed()
	}
	return s.Poll()
}

// flush sends what has left.
func (u *internet) flush() {
	for _, s := range u.used {
		s.Flush()
	}
	clear(u.used)
	u.used = u.used[:0]
}

// blocked reports whether a socket takes no more.
func (u *internet) blocked() bool {
	for _, s := range u.sockets {
		if s.Blocked() {
			return true
		}
	}
	return false
}

// idle reports whether the system has taken everything that was sent.
func (u *internet) idle() bool {
	for _, s := range u.sockets {
		if !s.Idle() {
			return false
		}
	}
	return true
}

// maxMessages is how many messages wait for the connection manager at most. More are dropped, as if they were lost.
const maxMessages = 4096

// verify drops what has arrived at one of the node's addresses without a right ICRC.
func verify(own netip.Addr, batch []link.Datagram) []link.Datagram {
	gid := wire.GIDOf(own)
	var from netip.AddrPort
	var flow wire.Flow
	return slices.DeleteFunc(batch, func(d link.Datagram) bool {
		if d.From != from {
			from, flow = d.From, wire.NewFlow(wire.GIDOf(d.From.Addr()), gid, d.From.Port())
		}
		_, ok := flow.Verify(d.Data)
		return !ok
	})
}

// receiveDatagrams takes what has arrived at one of the node's addresses, with right ICRCs. Anybody may have sent it: what is not a packet of the
// protocol is dropped.
func (n *node) receiveDatagrams(own netip.Addr, batch []link.Datagram) {
	for _, d := range batch {
		p := n.packets.Get()
		if p.Parse(d.Data, d.From, own) != nil {
			n.packets.Put(p)
			continue
		}
		p.TrafficClass, p.HopLimit = d.TrafficClass, d.HopLimit
		for _, c := range n.captures {
			c.add(p, time.Now())
		}
		n.enterPacket(p)
	}
}

// enterPacket takes a packet that has come from another machine.
func (n *node) enterPacket(p *wire.Packet) {
	switch {
	case p.DGID.Addr().IsMulticast() != (p.DestQP == wire.MulticastQP), n.device.Has(p.SGID): // in the second case the node has it already
		n.packets.Put(p)
	case p.DestQP != wire.GSI:
		n.device.Receive(p)
	default:
		if p.Opcode == wire.UDSendOnly && p.QKey == wire.GSIQKey && p.SrcQP == wire.GSI && p.PKey&0x7FFF == wire.DefaultPKey&0x7FFF &&
			len(p.Payload) == 1 && len(n.cm.mads) < maxMessages {
			n.receiveMAD(outside, manager.MAD{Src: p.SGID.Addr(), Dst: p.DGID.Addr(), Data: slices.Clone(p.Payload[0])})
		}
		n.packets.Put(p)
	}
}

// source returns the node's address from which a machine can be reached whose packets would leave from another one.
func (n *node) source(dst, usual netip.Addr) netip.Addr {
	if n.device.Has(wire.GIDOf(usual)) {
		return usual
	}
	table, err := n.device.GIDs()
	if err != nil {
		return usual
	}
	for _, e := range table {
		own := wire.GID(*e.Gid.Raw()).Addr()
		if own.Is4() != dst.Is4() || own.IsLoopback() != dst.IsLoopback() || own.IsLinkLocalUnicast() {
			continue
		}
		if from, err := route(dst, own); err == nil {
			return from
		}
	}
	return usual
}
