// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/dl"
	"github.com/verbena-go/verbena/softroce/internal/capi"
	"github.com/verbena-go/verbena/softroce/internal/node"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func init() { dl.Provide(name, dl.Device{Find: capi.Lookup, Open: open}) }

// open makes the device ready for a program that VERBENA_DEVICE has chosen it
// for.
func open(network string) error {
	if err := node.CheckLimits(); err != nil {
		return err
	}
	if err := node.CheckCheck(); err != nil {
		return err
	}
	return node.SetNetwork(network)
}

// Use selects the device for the program, even if VERBENA_DEVICE says something
// else. It must be called before any call that needs libibverbs or librdmacm.
//
// Use fails if an earlier call has used the installed libraries. It fails if
// the device is in use already and c.Network, c.Hostile, c.Limits or c.Check is
// neither empty nor the value in use, if the limits have an unknown name or a
// value out of range, and if c.Check has an unknown value. It also fails if the
// device cannot join the network: the error
// matches syscall.EADDRINUSE if another process or the kernel has the UDP port,
// and syscall.EAGAIN if too many processes of this user are on the machine's
// network. In a program that cannot call C, the error matches
// errors.ErrUnsupported.
//
// Use does not block, and may be called concurrently.
func Use(c Config) error {
	if err := dl.Use(name); err != nil {
		return fmt.Errorf("softroce.Use: %w", err)
	}
	if err := node.SetNetwork(c.Network); err != nil {
		return fmt.Errorf("softroce.Use: network %q: %w", c.Network, err)
	}
	if c.Limits != "" {
		if err := node.SetLimits(c.Limits); err != nil {
			return fmt.Errorf("softroce.Use: limits %q: %w", c.Limits, err)
		}
	} else if err := node.CheckLimits(); err != nil {
		return fmt.Errorf("softroce.Use: %w", err)
	}
	if c.Check != "" {
		if err := node.SetCheck(c.Check); err != nil {
			return fmt.Errorf("softroce.Use: check %q: %w", c.Check, err)
		}
	} else if err := node.CheckCheck(); err != nil {
		return fmt.Errorf("softroce.Use: %w", err)
	}
	if c.Hostile != "" {
		if err := node.SetHostile(c.Hostile); err != nil {
			return fmt.Errorf("softroce.Use: hostile mode %q: %w", c.Hostile, err)
		}
	}
	return nil
}

// SetFaults makes f decide what happens to each packet that this process sends
// from now on, including those of the connection manager. If f is nil, packets
// arrive undisturbed again; packets that were delayed before still arrive.
//
// f is called with one packet at a time, in the order in which the packets are
// sent, and the device does nothing else meanwhile. f must return soon. It must
// not call this package or any RDMA function, nor wait for a goroutine that
// does. f may start such a goroutine, for example to call SetFaults, which
// returns after f. If f ends its goroutine, as testing.T.FailNow does, the
// packet arrives.
func SetFaults(f func(Packet) Fault) {
	if f == nil {
		capi.Node().SetFaults(nil)
		return
	}
	capi.Node().SetFaults(func(p *wire.Packet) node.Fault { return node.Fault(f(packetOf(p))) })
}

// packetOf returns a packet in the form that programs see.
func packetOf(p *wire.Packet) Packet {
	return Packet{
		Kind: kindOf(p), Source: p.SGID.Addr(), Destination: p.DGID.Addr(), DestQP: p.DestQP, PSN: uint32(p.PSN),
		First: !p.Opcode.IsMiddle() && !p.Opcode.IsLast(), Last: !p.Opcode.IsMiddle() && !p.Opcode.IsFirst(), Len: p.PayloadLen(),
	}
}

// kindsOfMessages maps the messages of the connection manager to their kinds.
var kindsOfMessages = map[wire.Attribute]Kind{
	wire.AttrREQ:     KindREQ,
	wire.AttrREP:     KindREP,
	wire.AttrRTU:     KindRTU,
	wire.AttrREJ:     KindREJ,
	wire.AttrMRA:     KindMRA,
	wire.AttrDREQ:    KindDREQ,
	wire.AttrDREP:    KindDREP,
	wire.AttrSIDRReq: KindSIDRREQ,
	wire.AttrSIDRRep: KindSIDRREP,
}

// kindOf returns the kind of a packet.
func kindOf(p *wire.Packet) Kind {
	switch op := p.Opcode; {
	case p.DestQP == wire.GSI && len(p.Payload) == 1: // programs can send to this queue pair, too
		if m, err := wire.ParseMAD(p.Payload[0]); err == nil {
			if kind, known := kindsOfMessages[m.Attribute()]; known {
				return kind
			}
		}
		return KindSend
	case op.IsSend():
		return KindSend
	case op.IsWrite():
		return KindWrite
	case op.IsReadResponse():
		return KindReadResponse
	case op.Transport().Reliable() && op.Operation() == wire.RCReadRequest:
		return KindReadRequest
	case op.IsAtomic():
		return KindAtomicRequest
	case op.Transport().Reliable() && op.Operation() == wire.RCFlush:
		return KindFlush
	case op.Transport().Reliable() && op.Operation() == wire.RCAtomicWrite:
		return KindAtomicWrite
	case op.Transport().Reliable() && op.Operation() == wire.RCAtomicAck:
		return KindAtomicResponse
	case p.Syndrome.IsRNR():
		return KindNotReady
	case p.Syndrome.IsNak():
		return KindNak
	}
	return KindAck
}

// SetPort brings the device's port down, or up again. While the port is down,
// all sent packets are lost, so connections fail after they have used up their
// retries. The program gets the same events as with a card whose cable is
// unplugged: IBV_EVENT_PORT_ERR and IBV_EVENT_PORT_ACTIVE. SetPort fails if the
// device has been removed.
func SetPort(up bool) error { return failed("SetPort", capi.Node().SetPort(up)) }

// Remove removes the device, as if a card were unplugged. The program gets
// IBV_EVENT_DEVICE_FATAL, and RDMA_CM_EVENT_DEVICE_REMOVAL for each of its
// connections. Requests in progress complete with errors. Afterwards, all calls
// fail except those that close objects, and the program finds no device until
// [Insert]. Remove fails if the device has already been removed.
func Remove() error { return failed("Remove", capi.Node().Remove()) }

// Insert plugs in a new device after [Remove], with the same name and
// addresses. Objects of the removed device still belong to it. Insert fails if
// a device is already plugged in.
func Insert() error { return failed("Insert", capi.Node().Insert()) }

// SetAddresses gives the device the given addresses, in this order, in place of
// its own; nil restores those of the machine. An address that the device
// already has keeps its index in the GID table. Each address that is added or
// removed is reported by an event IBV_EVENT_GID_CHANGE. Connections that use a
// removed address continue. To connect to or from an address, the machine must
// have it as well. SetAddresses fails if the device has been removed, or if one
// of the addresses is not a unicast address.
func SetAddresses(addresses []netip.Addr) error {
	if err := node.CheckAddresses(addresses); err != nil { // before there is a node
		return failed("SetAddresses", err)
	}
	return failed("SetAddresses", capi.Node().SetAddresses(addresses))
}

// Capture writes all packets that this process sends to w in the pcap format,
// which Wireshark and tshark read. On the UDP network, it also writes the
// packets that arrive. The packets begin with the IP header, in the form of
// RoCE version 2. Packets of the connection manager are included, and so are
// packets that a fault drops. Capture continues until stop is called. stop
// returns the first error of w, after which nothing is written.
//
// w.Write is called with one packet at a time, and the device does nothing else
// meanwhile. So w must not block. It must not call this package or any RDMA
// function, nor wait for a goroutine that does; it may start such a goroutine.
// If w ends its goroutine, stop returns an error that says so.
//
// Before Capture returns, it writes the file's header to w in the caller's
// goroutine, where w may call any function. If that fails, Capture returns w's
// error.
func Capture(w io.Writer) (stop func() error, err error) {
	if w == nil {
		return nil, cerr.Nil("softroce.Capture", "w")
	}
	if err := node.BeginCapture(w); err != nil { // before there is a node
		return nil, failed("Capture", err)
	}
	return capi.Node().Capture(w), nil
}

// failed adds the name of the function to an error.
func failed(function string, err error) error {
	if err != nil {
		return fmt.Errorf("softroce.%s: %w", function, err)
	}
	return nil
}
