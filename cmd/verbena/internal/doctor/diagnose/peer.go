// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// Peer is another host. The doctor checks the path to it.
type Peer struct {
	Host string // name or address
	Port int    // port at which a server should listen; 0 means that no server is needed
}

// unusedPort is the port for a connection request that no program should
// accept. The refusal proves that packets reach the peer and come back.
const unusedPort = 1

// lookTime is how long the kernel may take to find a peer on the link. The
// kernel asks three times, one second apart.
const lookTime = 4 * time.Second

// peerChecks lists the checks of the path to the peer, which follow all others.
var peerChecks = []check{
	{name: "peer's address", lack: "no address of the peer", look: peerAddress},
	{name: "path to the peer", lack: "no path to the peer", needs: []string{"GIDs", "locked memory", "peer's address"}, look: peerPath},
	{name: "peer", needs: []string{"path to the peer"}, look: peerAnswer},
}

// peerAddress finds the addresses of the peer.
func peerAddress(ctx context.Context, m *machine) Finding {
	addrs, err := resolve(ctx, m.peer.Host)
	if err != nil {
		return Finding{Status: Fail, Found: err.Error(), Remedy: "give the peer's IP address, or see why the name has none"}
	}
	return m.judgeAddresses(addrs)
}

// resolve returns the addresses of a host.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil { // the resolver would drop the zone
		return []netip.Addr{addr.Unmap()}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}

// judgeAddresses keeps, of the peer's addresses, those at which a device can be
// reached.
func (m *machine) judgeAddresses(addrs []netip.Addr) Finding {
	m.peerAddrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.IsLoopback() || a.IsUnspecified() })
	if len(m.peerAddrs) == 0 {
		return Finding{
			Status: Fail, Found: join(addrs) + " is this machine's loopback address, which no RDMA device has",
			Remedy: "give an address of one of the peer's devices, as its verbena devices -g shows them",
		}
	}
	f := Finding{Status: OK, Found: join(m.peerAddrs)}
	if m.isOwn(m.peerAddrs[0]) {
		f.Found += ", which is this machine"
	}
	return f
}

// isOwn reports whether an interface of this machine has the address.
func (m *machine) isOwn(addr netip.Addr) bool {
	return slices.ContainsFunc(m.netDevs, func(d netDev) bool {
		return slices.ContainsFunc(d.addrs, func(p netip.Prefix) bool { return p.Addr() == addr.WithZone("") })
	})
}

// peerPath finds the device and the route for the first of the peer's addresses
// that has a route.
func peerPath(ctx context.Context, m *machine) Finding {
	var failed Finding
	for _, addr := range m.peerAddrs {
		through, err := findPath(ctx, addr)
		if isAny(err, notThere...) {
			// Linux 6.1 asks for the peer's hardware address, but
			// looks for the answer only when its time to wait is
			// over. The second attempt finds the answer.
			through, err = findPath(ctx, addr)
		}
		if err == nil {
			m.peerAddrs = []netip.Addr{addr}
			return Finding{Status: OK, Found: fmt.Sprintf("to %s through %s", addr, through)}
		}
		if failed.Found == "" {
			failed = m.noPath(addr, err)
		}
	}
	return failed
}

// findPath resolves an address and the route to it, and returns the device and
// port at which the route begins.
func findPath(ctx context.Context, addr netip.Addr) (through string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	ep, err := endpoint.New(rdmacm.PortSpaceTCP)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	info := rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, Dst: netip.AddrPortFrom(addr, unusedPort)}
	if err := ep.Resolve(ctx, info); err != nil {
		return "", err
	}
	device, err := ep.ID().Device()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s port %d, from %s", device.Name(), ep.ID().PortNum(), ep.ID().LocalAddr().Addr()), nil
}

// notThere lists the errors for an address at which no host answers.
var notThere = []error{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, context.DeadlineExceeded}

// noPath returns the finding for an address without a route, for which findPath
// has failed with err.
func (m *machine) noPath(addr netip.Addr, err error) Finding {
	f := Finding{Status: Fail, Found: fmt.Sprintf("none to %s: %v", addr, err), Remedy: whyNot(err)}
	switch {
	case isAny(err, notThere...):
		f.Found = fmt.Sprintf("no host answers on the link for %s, or for the gateway to it", addr)
		f.Remedy = fmt.Sprintf("check that the peer is up and has this address: ping %s", addr)
	case isAny(err, syscall.ENODEV, syscall.ENETUNREACH, syscall.EADDRNOTAVAIL):
		source, err := m.source(addr)
		if err != nil {
			f.Found, f.Remedy = fmt.Sprintf("this machine has no route to %s: %v", addr, err), "add a route through the interface of an RDMA device"
			break
		}
		f.Found = fmt.Sprintf("packets to %s leave through %s, which has no RDMA device", addr, m.nameOf(source))
		f.Remedy = "give an address of one of the peer's devices in a network that this machine's devices share, or change the route"
	}
	return f
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// sourceOf returns the local address from which packets go to addr.
func sourceOf(addr netip.Addr) (netip.Addr, error) {
	conn, err := net.Dial("udp", net.JoinHostPort(addr.String(), roceUDP)) // sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// nameOf returns the name of the interface that has an address.
func (m *machine) nameOf(addr netip.Addr) string {
	for _, d := range m.netDevs {
		for _, p := range d.addrs {
			if p.Addr() == addr.WithZone("") {
				return d.name
			}
		}
	}
	return addr.String()
}

// peerAnswer requests a connection from the peer.
func peerAnswer(ctx context.Context, m *machine) Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addr, port := m.peerAddrs[0].String(), strconv.Itoa(cmp.Or(m.peer.Port, unusedPort))
	conn, err := rdmacm.Dial(ctx, net.JoinHostPort(addr, port), nil)
	if err == nil {
		err = conn.Close()
	}
	return m.judgeAnswer(addr, err)
}

// judgeAnswer returns the finding for the result of a connection request.
func (m *machine) judgeAnswer(addr string, err error) Finding {
	rejected, answered := errors.AsType[*rdmacm.RejectedError](err)
	noListener := answered && (rejected.Reason == rdmacm.ReasonNoListener || rejected.Reason == -rdmacm.Reason(syscall.ECONNREFUSED))
	switch {
	case err == nil:
		return Finding{Status: OK, Found: fmt.Sprintf("%s accepts connections at port %d", addr, cmp.Or(m.peer.Port, unusedPort))}
	case noListener && m.peer.Port == 0:
		return Finding{Status: OK, Found: fmt.Sprintf("%s answers: it refuses port %d, at which no program listens", addr, unusedPort)}
	case noListener:
		return Finding{
			Status: Fail, Found: fmt.Sprintf("%s answers, but no program listens at port %d", addr, m.peer.Port),
			Remedy: "start the server, at this address or at every one, or give its port",
		}
	case answered:
		return Finding{Status: OK, Found: fmt.Sprintf("%s answers: %v", addr, err)}
	case isAny(err, notThere...):
		return Finding{
			Status: Fail, Found: fmt.Sprintf("%s is up, but does not answer connection requests", addr),
			Remedy: strings.Join([]string{
				"run verbena doctor on the peer: it needs an active RDMA device of the same kind at this address",
				"check that nothing on the path drops UDP port " + roceUDP + ", including a firewall on the peer",
			}, "; "),
		}
	}
	return Finding{Status: Fail, Found: fmt.Sprintf("connecting to %s: %v", addr, err), Remedy: whyNot(err)}
}
