// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"io"
	"slices"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// groups has the multicast groups that queue pairs of this node are attached
// to.
type groups struct {
	n       *Node
	entered map[wire.GID]io.Closer // multicast groups whose packets the node receives from its network, until the value is closed
}

func newGroups(n *Node) groups { return groups{n, map[wire.GID]io.Closer{}} }

// Attach attaches a queue pair to a multicast group, and makes the node receive
// the group's packets from the network. The caller holds the node's lock.
func (n *Node) Attach(q *engine.QP, group wire.GID) error {
	if err := q.Attach(group); err != nil {
		return err
	}
	if n.groups.entered[group] != nil {
		return nil
	}
	closer, err := n.network.enter(group)
	if err != nil {
		_ = q.Detach(group) // undo the attachment of the queue pair
		return err
	}
	if closer != nil {
		n.groups.entered[group] = closer
	}
	return nil
}

// Detach undoes Attach. If no queue pair of the node is attached to the group
// any more, the node stops receiving its packets. The caller holds the node's
// lock.
func (n *Node) Detach(q *engine.QP, group wire.GID) error {
	if err := q.Detach(group); err != nil {
		return err
	}
	closer := n.groups.entered[group]
	if closer == nil || slices.ContainsFunc(n.devices.inUse, func(d *engine.Device) bool { return d.HasMembers(group) }) {
		return nil
	}
	delete(n.groups.entered, group)
	return closer.Close()
}
