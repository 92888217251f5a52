// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
)

// The hints of this package.
const (
	noAddress      = "no RDMA device has this address"
	noLocalAddress = "no RDMA device has the local address"
	noRoute        = "no RDMA device on the route to this address" + cerr.Doctor
	noRouteAtAll   = "this machine has no route to this address"
	portTaken      = "the port is in use: an id bound to every address conflicts with one bound to a single address"
	alsoListens    = "another listener has this address and port"
	noLoopback     = "loopback addresses such as 127.0.0.1 belong to no RDMA device; use the address of a device" + cerr.Doctor
	smallMTU       = "the MTU of the network interface may be too small: RoCE needs 352 bytes" + cerr.Doctor
)

// leastMTU is the smallest MTU, in bytes, with which a network interface can
// carry RoCE.
const leastMTU = 352

// errnoOf returns the errno of an error of C, or 0.
func errnoOf(err error) syscall.Errno {
	if e, ok := err.(*ibverbs.Error); ok {
		return e.Errno
	}
	return 0
}

// setHint replaces the hint of an error of a C call, unless hint is empty.
func setHint(err error, hint string) {
	if e, ok := err.(*ibverbs.Error); ok && hint != "" {
		sealed.Open(e.Internals()).SetHint(hint)
	}
}

// errPortTaken reports that a bind failed because of the port. The kernel
// reports EADDRNOTAVAIL if only a part of the address is in use.
type errPortTaken struct{ err error }

func (e errPortTaken) Error() string   { return e.err.Error() }
func (e errPortTaken) Unwrap() []error { return []error{e.err, syscall.EADDRINUSE} }

// explainBind finds out why the ID could not be bound to an address, and sets
// the error's hint.
func (id *ID) explainBind(err error, addr netip.AddrPort) error {
	switch errnoOf(err) {
	case syscall.EADDRINUSE:
		setHint(err, alsoListens)
	case syscall.EADDRNOTAVAIL:
		if addr.Port() != 0 && id.canBind(netip.AddrPortFrom(addr.Addr(), 0)) {
			setHint(err, portTaken)
			return errPortTaken{err}
		}
		setHint(err, missing(addr.Addr(), noAddress))
	case syscall.ENODEV:
		setHint(err, missing(addr.Addr(), noAddress))
	}
	return err
}

// canBind reports whether another ID can be bound to an address.
func (id *ID) canBind(addr netip.AddrPort) bool {
	ch := id.channel.Load()
	if ch.self().Use() != nil {
		return false
	}
	defer ch.object.Done()
	other, err := ch.NewID(id.ps)
	if err != nil {
		return false
	}
	sa, err := newSockaddr(addr)
	if err == nil {
		err = other.bind(sa, addr.String())
	}
	return errors.Join(err, other.Close()) == nil
}

// explainResolve finds out why an address could not be resolved, and sets the
// error's hint.
func explainResolve(err error, src, dst netip.AddrPort) error {
	switch errnoOf(err) {
	case syscall.EADDRNOTAVAIL:
		setHint(err, missing(src.Addr(), noLocalAddress))
	case syscall.ENODEV, syscall.ENETUNREACH:
		if dst.Addr().IsLoopback() {
			setHint(err, noLoopback)
			return err
		}
		local := src.Addr()
		if !local.IsValid() {
			conn, dialErr := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(dst)) // sends nothing
			switch {
			case errors.Is(dialErr, syscall.EMFILE): // EMFILE has nothing to do with the route
				return err
			case dialErr != nil:
				setHint(err, noRouteAtAll)
				return err
			}
			local = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			_ = conn.Close() // nothing was sent
		}
		setHint(err, missing(local, noRoute))
	}
	return err
}

// explainRoute finds out why the route of an ID could not be resolved. It
// returns the error with a hint.
func (id *ID) explainRoute(err error) error {
	switch errnoOf(err) {
	case syscall.ENODEV:
		if id.RemoteAddr().Addr().IsLoopback() {
			setHint(err, noLoopback)
		}
	case syscall.EINVAL:
		if ifi := interfaceOf(id.LocalAddr().Addr()); ifi != nil && ifi.MTU < leastMTU {
			setHint(err, smallMTU)
		}
	}
	return err
}

// missing returns hint if no device has the address, and "" otherwise. If the
// process cannot open more devices, missing returns another hint, which gives
// the reason.
func missing(addr netip.Addr, hint string) string {
	devices, err := Devices()
	if err != nil || !addr.IsValid() || addr.IsUnspecified() {
		return cerr.HandlesHint()
	}
	addr = addr.Unmap().WithZone("")
	var hasIPoIB bool
	for _, d := range devices {
		gids, err := d.QueryGIDTable()
		if err != nil {
			return ""
		}
		for _, e := range gids {
			if e.GID.Addr() == addr {
				return ""
			}
		}
		port, err := d.QueryPort(1)
		hasIPoIB = hasIPoIB || err != nil || port.LinkLayer != link.Ethernet || d.Raw().Device.TransportType != libibverbs.IBV_TRANSPORT_IB
	}
	if full := cerr.HandlesHint(); full != "" {
		return full
	}
	if hasIPoIB && interfaceOf(addr) != nil { // IPoIB's GIDs do not contain the IP addresses
		return ""
	}
	return hint
}

// interfaceOf returns the network interface that has an address, or nil.
func interfaceOf(addr netip.Addr) *net.Interface {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for i := range all {
		addrs, _ := all[i].Addrs() // none if the interface is gone
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == addr.Unmap().WithZone("") {
				return &all[i]
			}
		}
	}
	return nil
}
