// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"io"
	"slices"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// groups are the multicast groups that have queue pairs on the node.
type groups struct {
	n       *Node
	entered map[wire.GID]io.Closer // groups that the node has entered on its network
}

func newGroups(n *Node) groups { return groups{n, map[wire.GID]io.Closer{}} }

// Attach makes a queue pair receive what is sent to a group. The caller has the
// node locked.
func (n *Node) Attach(q *engine.QP, group wire.GID) error {
	if err := q.Attach(group); err != nil {
		return err
	}
	if n.groups.entered[group] != nil {
		return nil
	}
	closer, err := n.network.enter(group)
	if err != nil {
		_ = q.Detach(group) // it is in the group
		return err
	}
	if closer != nil {
		n.groups.entered[group] = closer
	}
	return nil
}

// Detach undoes Attach. The caller has the node locked.
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
