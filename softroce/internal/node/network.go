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

// network is what the node is connected to: the processes of its machine, or
// all machines that UDP reaches. The methods are called with the node locked.
type network interface {
	engine.Outgoing

	// configure sets the fields of a device's configuration that depend on
	// the network.
	configure(c *engine.Config)
	// addresses returns the addresses that a device on the network has now.
	addresses() ([]machineAddress, error)
	// show lets other nodes find the addresses in all, which were chosen
	// for the node's devices, in place of those of the last call. all has
	// each address once. An address without an interface has no netDev.
	show(all []machineAddress)
	// isPublic reports whether hosts that are hostile or run other software
	// may send to the node.
	isPublic() bool

	// carry sends a packet to its destination, and takes ownership of the
	// packet.
	carry(p *wire.Packet)
	// carryMAD sends a message of the connection manager to its
	// destination.
	carryMAD(m manager.MAD)
	// receive handles what other nodes have sent. more reports whether
	// there is more to handle.
	receive() (more bool)
	// wake wakes the nodes to which this node has sent something.
	wake()
	// room reports whether the network has room for another packet to the
	// queue pair qpn.
	room(qpn uint32) bool

	// enter makes the node receive the packets of a multicast group until
	// the result is closed. The result is nil if there is nothing to close.
	enter(group wire.GID) (io.Closer, error)
	// claim claims the port that name stands for, until the result is
	// closed. The result is nil if there is nothing to close. The error is
	// a syscall.Errno.
	claim(name string) (io.Closer, error)

	// reach fails if it is certain that no other node has the address g. g
	// is not an address of this node's device.
	reach(g wire.GID) error
	// knows reports whether a node has the address g although the system
	// may have no route to it.
	knows(g wire.GID) bool
	// route returns the source address for packets to dst. src is the
	// address that the program bound, or the zero Addr. usual is the source
	// address that the system chooses: src if that is valid. If the system
	// has no route, usual is src or dst. route fails if
	// dst cannot be reached.
	route(dst, src, usual netip.Addr) (netip.Addr, error)
	// answers reports whether the machine would send packets for peer
	// through the interface that has the address own. If it would not, a
	// message from peer to own may be forged.
	answers(own, peer netip.Addr) bool
}

// choices has what must be decided before the node is created.
var choices struct {
	sync.Mutex
	made     bool           // whether the node has been created
	hostile  string         // seed of the hostile mode; empty: off
	limits   *engine.Limits // limits of SetLimits, or those in use; nil: not chosen yet
	check    string         // options of SetCheck
	devices  []DeviceConfig // devices of SetDevices, or those in use; nil: not chosen yet
	opened   bool           // whether SetNetwork has succeeded
	network  string         // options of SetNetwork
	internet *internet      // nil: this machine's network
	link     *link.Link     // link to this machine's network, if SetNetwork has reserved it and no node has taken it
}

// DeviceVariable is the environment variable that names the device and its
// network for programs that do not call SetNetwork, such as those not written
// in Go.
const DeviceVariable = "VERBENA_DEVICE"

// SetNetwork chooses the node's network. Empty options choose this machine's
// network, and "udp" chooses UDP. "udp=" may be followed by the addresses that
// the device is to have, separated by commas. SetNetwork fails if the node is
// already on another network.
func SetNetwork(options string) error {
	choices.Lock()
	defer choices.Unlock()
	if choices.opened && options == "" || choices.opened && options == choices.network {
		return nil
	}
	if choices.made || choices.opened {
		return errInUse
	}
	devices, err := wantedDevices()
	if err != nil {
		return err
	}
	u, err := parseNetwork(options)
	if err == nil && u != nil {
		err = u.choose(devices)
	}
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
	choices.opened, choices.network, choices.devices, choices.internet, choices.link = true, options, devices, u, l
	return nil
}

// errInUse is the error of SetNetwork and of similar functions once the device
// is in use.
var errInUse = errors.New("the device is in use already")

// chosenInternet returns the UDP network if SetNetwork or the environment chose
// it, and nil if the node is on this machine's network.
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

// takeLink returns the link that SetNetwork reserved on this machine's network,
// or nil. Only the first node gets it, as the link is that of one node.
func takeLink() (l *link.Link) {
	choices.Lock()
	defer choices.Unlock()
	l, choices.link = choices.link, nil
	return l
}

// opened reports whether SetNetwork has succeeded.
func opened() bool {
	choices.Lock()
	defer choices.Unlock()
	return choices.opened
}

// parseNetwork returns the network for the options of SetNetwork. It returns
// nil for this machine's network.
func parseNetwork(options string) (*internet, error) {
	if options == "" {
		return nil, nil
	}
	network, list, some := strings.Cut(options, "=")
	if network != "udp" {
		return nil, fmt.Errorf("unknown network %q: want udp, or udp= and addresses of this machine", network)
	}
	u := &internet{sockets: map[wire.GID]*link.Socket{}, reachable: link.Reachable, answersBy: link.Answers}
	if u.others = !some; u.others {
		return u, nil
	}
	var err error
	if u.named, err = parseAddresses(list); err != nil {
		return nil, err
	}
	for _, a := range u.named {
		if !isUnicast(a) {
			return nil, fmt.Errorf("%v is not a unicast address", a)
		}
	}
	return u, nil
}
