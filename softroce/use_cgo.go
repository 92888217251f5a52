// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/internal/dl"
	"github.com/verbena-go/verbena/softroce/internal/face"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func init() { dl.Provide(name, dl.Device{Find: face.Lookup, Open: face.Open}) }

// Use makes the device the program's, whatever VERBENA_DEVICE says. It must come
// before any call that needs libibverbs or librdmacm, and fails after one that
// took the installed libraries. It fails, too, if the device is in use already and
// c.Network or c.Hostile is neither empty nor what it was, and if the device cannot have the network:
// the error matches syscall.EADDRINUSE if another process or the kernel has its UDP port, and syscall.EAGAIN if as
// many processes of this user as can be are in the machine's network. It does not block, and may be called concurrently.
//
// The error matches errors.ErrUnsupported where Go cannot call C.
func Use(c Config) error {
	if err := dl.Use(name); err != nil {
		return fmt.Errorf("softroce.Use: %w", err)
	}
	if err := face.Open(c.Network); err != nil {
		return fmt.Errorf("softroce.Use: network %q: %w", c.Network, err)
	}
	if c.Hostile != "" {
		if err := face.SetHostile(c.Hostile); err != nil {
			return fmt.Errorf("softroce.Use: hostile mode %q: %w", c.Hostile, err)
		}
	}
	return nil
}

// SetFaults makes f say what happens to each packet that this process sends from now on, those of the
// connection manager included; nil ends it. Packets that f has delayed arrive nevertheless.
//
// f is called for one packet after the other, in the order in which they are sent. Meanwhile the device does
// nothing else: f must return soon and must not call this package, or any of RDMA. If f ends its goroutine instead, as testing.T.FailNow
// does, the packet arrives.
func SetFaults(f func(Packet) Fault) {
	if f == nil {
		face.SetFaults(nil)
		return
	}
	face.SetFaults(func(p *wire.Packet) face.Fault { return face.Fault(f(packetOf(p))) })
}

// packetOf returns what a program sees of a packet.
func packetOf(p *wire.Packet) Packet {
	return Packet{
		Kind: kindOf(p), Source: p.SGID.Addr(), Destination: p.DGID.Addr(), DestQP: p.DestQP, PSN: uint32(p.PSN),
		First: !p.Opcode.IsMiddle() && !p.Opcode.IsLast(), Last: !p.Opcode.IsMiddle() && !p.Opcode.IsFirst(), Len: p.PayloadLen(),
	}
}

var kindsOfMessages = map[wire.Attribute]Kind{
	wire.AttrREQ: REQ, wire.AttrREP: REP, wire.AttrRTU: RTU, wire.AttrREJ: REJ, wire.AttrMRA: MRA, wire.AttrDREQ: DREQ,
	wire.AttrDREP: DREP, wire.AttrSIDRReq: SIDRREQ, wire.AttrSIDRRep: SIDRREP,
}

func kindOf(p *wire.Packet) Kind {
	switch op := p.Opcode; {
	case p.DestQP == wire.GSI && len(p.Payload) == 1: // programs may send there, too
		if m, err := wire.ParseMAD(p.Payload[0]); err == nil {
			if kind, known := kindsOfMessages[m.Attribute()]; known {
				return kind
			}
		}
		return Send
	case op.IsSend():
		return Send
	case op.IsWrite():
		return Write
	case op.IsReadResponse():
		return ReadResponse
	case op == wire.RCReadRequest:
		return ReadRequest
	case op.IsAtomic():
		return AtomicRequest
	case op == wire.RCAtomicAck:
		return AtomicResponse
	case p.Syndrome.IsRNR():
		return NotReady
	case p.Syndrome.IsNak():
		return Nak
	}
	return Ack
}

// SetPort brings the device's port down, or up again. While it is down everything that is sent is lost, so
// connections fail once they have sent again as often as they may. The program gets the events that it gets
// from a card whose cable is pulled: IBV_EVENT_PORT_ERR and IBV_EVENT_PORT_ACTIVE. The error says that the device is removed.
func SetPort(up bool) error { return failed("SetPort", face.SetPort(up)) }

// Remove pulls the device out. The program gets IBV_EVENT_DEVICE_FATAL, and for each of its connections
// RDMA_CM_EVENT_DEVICE_REMOVAL; requests that are under way complete with errors; from then on everything fails except for
// what closes objects, and there is no device, until [Insert]. The error says that it is removed already.
func Remove() error { return failed("Remove", face.Remove()) }

// Insert plugs in another device after [Remove], with the same name and addresses. What was made on the old one
// stays with that. The error says that there is a device.
func Insert() error { return failed("Insert", face.Insert()) }

// SetAddresses makes these the addresses of the device, in this order, instead of those of the machine; nil
// ends that. An address that the device had before keeps its place in the table of GIDs. Each that comes or goes makes an
// event IBV_EVENT_GID_CHANGE. Connections of an address that goes stay as they are. Connections need addresses that the machine
// has, too; other uses do not. The error says that the device is removed, or that no port can have one of the addresses.
func SetAddresses(addresses []netip.Addr) error {
	return failed("SetAddresses", face.SetAddresses(addresses))
}

// Capture writes all packets that this process sends to w in the format of pcap, which Wireshark and tshark
// read: as RoCE version 2 has them from the IP header on, those of the connection manager included, and those that a
// fault then drops. It writes until stop is called, which returns the first error of w; after that
// nothing is written.
//
// Capture calls w.Write once per packet and holds up the device meanwhile, so w
// must not block, and must not call this package, or any of RDMA. It returns w's
// error if writing the file's header fails.
func Capture(w io.Writer) (stop func() error, err error) {
	stop, err = face.Capture(w)
	return stop, failed("Capture", err)
}

func failed(function string, err error) error {
	if err != nil {
		return fmt.Errorf("softroce.%s: %w", function, err)
	}
	return nil
}
