// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

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
	if err := node.CheckDevices(); err != nil {
		return err
	}
	return node.SetNetwork(network)
}

// Use selects the device for the program, even if VERBENA_DEVICE says something
// else. It must be called before any call that needs libibverbs or librdmacm.
//
// Use fails if an earlier call has used the installed libraries. It fails if
// the device is in use already and c.Network, c.Devices, c.Hostile, c.Limits or
// c.Check is neither empty nor the value in use, if the limits have an unknown
// name or a value out of range, and if c.Check has an unknown value. It fails
// if there are more than 16 devices, or if a device cannot have its name or
// addresses. It also fails if the device cannot join the network: the error
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
	var devices []node.DeviceConfig
	for _, d := range c.Devices {
		devices = append(devices, node.DeviceConfig(d))
	}
	if err := node.SetDevices(devices); err != nil {
		return fmt.Errorf("softroce.Use: devices: %w", err)
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

// Card is the place of a device in this process: the device can be removed, and
// another one with the same name inserted. FindCard returns it. The methods may
// be called concurrently, and do not block.
type Card struct{ card *node.Card }

// FindCard returns the card of the device with that name, whether the device is
// removed or not. It fails if the process has no device with the name.
func FindCard(name string) (*Card, error) {
	var names []string
	for _, c := range capi.Node().Cards() {
		if c.Name() == name {
			return &Card{c}, nil
		}
		names = append(names, c.Name())
	}
	return nil, fmt.Errorf("softroce.FindCard: no device has the name %q: the devices are %s", name, strings.Join(names, ", "))
}

// do calls a function of the card, unless the program did not get c from
// FindCard.
func (c *Card) do(method string, f func(*node.Card) error) error {
	if c == nil || c.card == nil {
		return cerr.Nil("softroce.Card."+method, "Card")
	}
	return failed("Card."+method+": "+c.card.Name(), f(c.card))
}

// SetPort does for the card's device what the function [SetPort] does for the
// first device.
func (c *Card) SetPort(up bool) error {
	return c.do("SetPort", func(card *node.Card) error { return card.SetPort(up) })
}

// Remove does for the card's device what the function [Remove] does for the
// first device.
func (c *Card) Remove() error { return c.do("Remove", (*node.Card).Remove) }

// Insert plugs in a new device after [Card.Remove], as the function [Insert]
// does.
func (c *Card) Insert() error { return c.do("Insert", (*node.Card).Insert) }

// SetAddresses does for the card's device what the function [SetAddresses] does
// for the first device.
func (c *Card) SetAddresses(addresses []netip.Addr) error {
	return c.do("SetAddresses", func(card *node.Card) error {
		if err := node.CheckAddresses(addresses); err != nil {
			return err
		}
		return card.SetAddresses(addresses)
	})
}

// SetPort brings the port of the first device down, or up again. While the port
// is down, all packets to and from the device are lost, so connections fail
// after they have used up their retries. The program gets the same events as
// with a card whose cable is unplugged: IBV_EVENT_PORT_ERR and
// IBV_EVENT_PORT_ACTIVE. SetPort fails if the device has been removed.
func SetPort(up bool) error { return failed("SetPort", capi.Node().Cards()[0].SetPort(up)) }

// Remove removes the first device, as if a card were unplugged. The program
// gets IBV_EVENT_DEVICE_FATAL, and RDMA_CM_EVENT_DEVICE_REMOVAL for each of its
// connections through the device. Requests in progress complete with errors.
// Afterwards, all calls for the device fail except those that close objects,
// and the program does not find the device until [Insert]. Remove fails if the
// device has already been removed.
func Remove() error { return failed("Remove", capi.Node().Cards()[0].Remove()) }

// Insert plugs in a new device after [Remove], with the same name and
// addresses. Objects of the removed device still belong to it. Insert fails if
// a device is already plugged in.
func Insert() error { return failed("Insert", capi.Node().Cards()[0].Insert()) }

// SetAddresses gives the first device the given addresses, in this order, in
// place of its own; nil restores those of its [DeviceConfig] or, without one,
// of the machine. An address that the device already has keeps its index in the
// GID table. Each address that is added or removed is reported by an event
// IBV_EVENT_GID_CHANGE. Connections that use a removed address continue. On the
// UDP network, connections to or from an address need one of the network's.
// SetAddresses fails if the device has been removed, if one of the addresses is
// not a unicast address, or if it was chosen for another device.
func SetAddresses(addresses []netip.Addr) error {
	if err := node.CheckAddresses(addresses); err != nil { // before there is a node
		return failed("SetAddresses", err)
	}
	return failed("SetAddresses", capi.Node().Cards()[0].SetAddresses(addresses))
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
