// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// Ports are the network's. A node that has a port claims it by a name, by which
// the others find the node that a request goes to.

// claimed is a name that this node has.
type claimed struct {
	name  io.Closer // nil: the network keeps none
	users int       // claims that need the name
}

// claimNames returns the names of a claim. All addresses of a family have one
// name. A node that has a port at one address does not keep another node from
// having it at all addresses, and requests to that one address go to the first
// node.
func claimNames(c manager.Claim) []string {
	addr, port := c.Addr.Addr(), c.Addr.Port()
	switch {
	case addr.Is6() && addr.IsUnspecified() && !c.V6Only:
		return []string{claimName(c.Space, addr, port), claimName(c.Space, netip.IPv4Unspecified(), port)}
	default:
		return []string{claimName(c.Space, addr, port)}
	}
}

func claimName(space librdmacm.PortSpace, addr netip.Addr, port uint16) string {
	return fmt.Sprintf("%d/%v/%d", space, addr.WithZone(""), port)
}

// claim claims a port, until release is called.
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
