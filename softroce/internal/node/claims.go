// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/link"
)

// All nodes share the port numbers of the network. A node that listens on a
// port claims a name that stands for the address and port; other nodes find the
// node by this name when they send a connection request.

// claimed is a name that this node has claimed in its network.
type claimed struct {
	name  io.Closer // gives the name up; nil if the network keeps no names
	users int       // number of the node's claims that use the name
}

// claimNames returns the names for the address and port of c. Each address has
// a name of its own, and so has the unspecified address, which stands for all
// addresses of its family. So one node may claim a port at one address while
// another node has claimed the port at all addresses; the first node then gets
// the requests to its address. An unspecified IPv6 address also claims the IPv4
// name unless c.V6Only is set.
func claimNames(c manager.Claim) []string {
	addr, port := c.Addr.Addr(), c.Addr.Port()
	switch {
	case addr.Is6() && addr.IsUnspecified() && !c.V6Only:
		return []string{claimName(c.Space, addr, port), claimName(c.Space, netip.IPv4Unspecified(), port)}
	default:
		return []string{claimName(c.Space, addr, port)}
	}
}

// claimName returns the name for a port at an address.
func claimName(space librdmacm.PortSpace, addr netip.Addr, port uint16) string {
	return fmt.Sprintf("%d/%v/%d", space, addr.WithZone(""), port)
}

// claim claims an address and port for this node, until release is called. It
// fails if another node has claimed them.
func (c *connections) claim(port manager.Claim) (release func(), err error) {
	var have []string
	release = func() {
		for _, name := range have {
			c.unclaimName(name)
		}
	}
	for _, name := range claimNames(port) {
		if err := c.claimName(name); err != nil {
			release()
			return nil, err
		}
		have = append(have, name)
	}
	return release, nil
}

// announce shows other processes that an ID of this one listens at a port,
// until end is called. It opens Unix sockets with names, so that tools can see
// them in /proc/net/unix.
func announce(port manager.Claim) (end func()) {
	var open []io.Closer
	for _, name := range claimNames(port) {
		closer, err := link.Announce(fmt.Sprintf("listen/%d/%s", os.Getpid(), name))
		if err == nil { // if it fails, the ID still listens
			open = append(open, closer)
		}
	}
	return func() {
		for _, closer := range open {
			closer.Close()
		}
	}
}

// claimName claims a name. If this node has already claimed it, claimName only
// counts another use of it.
func (c *connections) claimName(name string) error {
	own := c.claims[name]
	if own == nil {
		closer, err := c.n.network.claim(name)
		if err != nil {
			return err
		}
		own = &claimed{name: closer}
		c.claims[name] = own
	}
	own.users++
	return nil
}

// unclaimName ends one use of a name. After the last use, it gives the name up.
func (c *connections) unclaimName(name string) {
	own := c.claims[name]
	own.users--
	if own.users > 0 {
		return
	}
	delete(c.claims, name)
	if own.name != nil {
		own.name.Close()
	}
}

// ClaimFile claims a file, named by its device and inode, for this node until
// release is called. It fails with EADDRINUSE if another process of the same
// network has claimed it. On the network of all machines, processes do not
// learn of each other's claims, and ClaimFile succeeds. The node must be
// locked.
func (n *Node) ClaimFile(device, inode uint64) (release func(), err error) {
	name := fmt.Sprintf("file/%d/%d", device, inode)
	if err := n.cm.claimName(name); err != nil {
		return nil, err
	}
	return func() { n.cm.unclaimName(name) }, nil
}
