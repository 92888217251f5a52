// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/internal/dl"
	"github.com/verbena-go/verbena/softroce/internal/capi"
	"github.com/verbena-go/verbena/softroce/internal/node"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func init() { dl.Provide(name, dl.Device{Find: capi.Lookup, Open: node.SetNetwork}) }

// Use selects the device for the program, whatever VERBENA_DEVICE says. It must
// come before any call that needs libibverbs or librdmacm.
//
// Use fails after a call that took the installed libraries. It fails if the
// device is in use already and c.Network or c.Hostile is neither empty nor the
// current value. It also fails if the device cannot have the network. The error
// then matches syscall.EADDRINUSE if another process or the kernel has its UDP
// port, and syscall.EAGAIN if the machine's network already has the maximum
// number of processes of this user. The error matches errors.ErrUnsupported
// where Go cannot call C.
//
// Use does not block, and may be called concurrently.
func Use(c Config) error {
	if err := dl.Use(name); err != nil {
		return fmt.Errorf("softroce.Use: %w", err)
	}
	if err := node.SetNetwork(c.Network); err != nil {
		return fmt.Errorf("softroce.Use: network %q: %w", c.Network, err)
	}
	if c.Hostile != "" {
		if err := node.SetHostile(c.Hostile); err != nil {
			return fmt.Errorf("softroce.Use: hostile mode %q: %w", c.Hostile, err)
		}
	}
	return nil
}

// SetFaults makes f decide the fate of each packet that this process sends from
// now on, including those of the connection manager. nil ends it. Packets that
// f has delayed still arrive.
//
// f is called for one packet at a time, in the order in which they are sent,
// and holds up the device meanwhile. f must return soon and must not call this
// package or any RDMA function, nor wait for a goroutine that does. f may start
// such a goroutine, for example to call SetFaults, which returns when f has. If
// f ends its goroutine instead, as testing.T.FailNow does, the packet arrives.
func SetFaults(f func(Packet) Fault) {
	if f == nil {
		capi.Node().SetFaults(nil)
		return
	}
	capi.Node().SetFaults(func(p *wire.Packet) node.Fault { return node.Fault(f(packetOf(p))) })
}

// packetOf returns a packet as programs see it.
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

// SetPort brings the device's port down, or up again. While it is down, all
// sent packets are lost, so connections fail once they have used up their
// retries. The program gets the events of a card whose cable is pulled:
// IBV_EVENT_PORT_ERR and IBV_EVENT_PORT_ACTIVE. SetPort fails if the device has
// been removed.
func SetPort(up bool) error { return failed("SetPort", capi.Node().SetPort(up)) }

// Remove pulls the device out. The program gets IBV_EVENT_DEVICE_FATAL, and
// RDMA_CM_EVENT_DEVICE_REMOVAL for each of its connections. Requests in
// progress complete with errors. From then on, all calls fail except those that
// close objects, and there is no device until [Insert]. Remove fails if the
// device has already been removed.
func Remove() error { return failed("Remove", capi.Node().Remove()) }

// Insert plugs in another device after [Remove], with the same name and
// addresses. Objects of the removed device stay with it. Insert fails if a
// device is already plugged in.
func Insert() error { return failed("Insert", capi.Node().Insert()) }

// SetAddresses replaces the addresses of the device by the given ones, in this
// order; nil restores those of the machine. An address that the device had
// before keeps its place in the GID table. Each added or removed address makes
// an event IBV_EVENT_GID_CHANGE. Connections of a removed address stay as they
// are. Connections need addresses that the machine has as well; other uses do
// not. SetAddresses fails if the device has been removed, or if a port cannot
// have one of the addresses.
func SetAddresses(addresses []netip.Addr) error {
	return failed("SetAddresses", capi.Node().SetAddresses(addresses))
}

// Capture writes all packets that this process sends to w in the pcap format,
// which Wireshark and tshark read. They have the form of RoCE version 2 from
// the IP header on. They include those of the connection manager, and those
// that a fault then drops. Capture continues until stop is called. stop returns
// the first error of w; nothing is written after such an error.
//
// Capture calls w.Write once per packet and holds up the device meanwhile, so w
// must not block, and must not call this package or any RDMA function, nor wait
// for a goroutine that does. w may start such a goroutine. If w ends its
// goroutine, stop returns an error that says so. Capture returns w's error if
// writing the file's header fails; that first call of w.Write, in the goroutine
// of Capture, may call everything.
func Capture(w io.Writer) (stop func() error, err error) {
	stop, err = capi.Node().Capture(w)
	return stop, failed("Capture", err)
}

func failed(function string, err error) error {
	if err != nil {
		return fmt.Errorf("softroce.%s: %w", function, err)
	}
	return nil
}
