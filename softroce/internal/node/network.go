// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// network is what the node reaches: itself and the other processes of its
// machine, or all machines. Its methods are called with the node locked.
type network interface {
	engine.Outgoing

	// configure sets what the network decides about a device.
	configure(c *engine.Config)
	// addresses returns the addresses that the device can have now.
	addresses() ([]machineAddress, error)
	// isPublic reports whether hosts with other software, or hostile ones,
	// may send to the node.
	isPublic() bool

	// carry takes a packet to where it goes. The packet then belongs to the
	// network.
	carry(p *wire.Packet)
	// carryMAD takes a message of the connection manager to where it goes.
	carryMAD(m manager.MAD)
	// receive takes what neighbours have sent, and reports whether there is
	// more.
	receive() (more bool)
	// wake rings the bells of the neighbours that the node has sent to.
	wake()
	// room reports whether the network takes more for a queue pair.
	room(qpn uint32) bool

	// enter makes what is sent to a group come to this node, until the
	// result is closed. The result may be nil.
	enter(group wire.GID) (io.Closer, error)
	// claim makes the port called name this node's, until the result is closed.
	// The result may be nil. The error is a syscall.Errno.
	claim(name string) (io.Closer, error)

	// reach fails if no node has the address g, which is not an address of this
	// node.
	reach(g wire.GID) error
	// route returns the address to send from to dst. src is the address that the
	// program has bound, if valid. usual is the address that the system would send
	// from, which is src if src is valid.
	route(dst, src, usual netip.Addr) (netip.Addr, error)
	// answers reports whether the machine can send to peer through the interface
	// that has the address own. If it cannot, a message from peer to own may be
	// forged.
	answers(own, peer netip.Addr) bool
}

// choices has the decisions that are made before there is a node.
var choices struct {
	sync.Mutex
	made     bool // the node is made
	hostile  string
	opened   bool // the network is decided
	network  string
	internet *internet  // nil: the machine's network
	link     *link.Link // nil: the machine's network was not opened
}

// DeviceVariable is the environment variable that names the network of a device
// if SetNetwork was not called, as in a program that is not written in Go.
const DeviceVariable = "VERBENA_DEVICE"

// SetNetwork decides which network the node is in: the machine's if options are
// empty, else "udp" or "udp=" and addresses, with commas between them.
// SetNetwork fails if the node is on another network already.
func SetNetwork(options string) error {
	choices.Lock()
	defer choices.Unlock()
	if choices.opened && options == "" || choices.opened && options == choices.network {
		return nil
	}
	if choices.made || choices.opened {
		return errInUse
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

// errInUse is the error of a choice that comes too late.
var errInUse = errors.New("the device is in use already")

// chosenInternet returns the network that SetNetwork or the environment chose,
// or nil if that is the machine's.
func chosenInternet() (*internet, error) {
	if name, options, _ := strings.Cut(os.Getenv(DeviceVariable), ":"); name == "soft" && !opened() {
		if err := SetNetwork(options); err != nil {
			return nil, fmt.Errorf("%s=%s:%s: %w", DeviceVariable, name, options, err)
		}
	}
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	return choices.internet, nil
}

// chosenLink returns the link to the machine's network that was opened, nil if
// none was.
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
	u := &internet{sockets: map[wire.GID]*link.Socket{}, reachable: link.Reachable, answersBy: link.Answers}
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
