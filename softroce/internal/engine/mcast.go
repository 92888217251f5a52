// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Attach adds a datagram queue pair to a multicast group. It does nothing if
// the queue pair is in the group already. It fails with EINVAL if the queue
// pair is of another type or group is not a multicast address, with ENOMEM if
// there are too many groups or the group has too many queue pairs, and with
// EOPNOTSUPP if the device has no groups.
func (q *QP) Attach(group wire.GID) error {
	d := q.device
	if err := d.check(); err != nil {
		return err
	}
	if d.limits.Groups == 0 {
		return syscall.EOPNOTSUPP
	}
	if q.kind != libibverbs.IBV_QPT_UD || !isMulticast(group) {
		return syscall.EINVAL
	}
	members, known := d.groups[group]
	if slices.Contains(members, q) {
		return nil
	}
	if len(members) == maxGroupQPs || !known && len(d.groups) == int(d.limits.Groups) {
		return syscall.ENOMEM
	}
	d.groups[group] = append(members, q)
	q.groups++
	return nil
}

// Groups returns the multicast groups that the queue pair is in.
func (q *QP) Groups() (groups []wire.GID) {
	for group, members := range q.device.groups {
		if slices.Contains(members, q) {
			groups = append(groups, group)
		}
	}
	return groups
}

// HasMembers reports whether any queue pair is in the multicast group.
func (d *Device) HasMembers(group wire.GID) bool { return len(d.groups[group]) > 0 }

// Detach undoes Attach. It fails with EINVAL if the queue pair is not in the
// group.
func (q *QP) Detach(group wire.GID) error {
	d := q.device
	members := d.groups[group]
	i := slices.Index(members, q)
	if i < 0 {
		return syscall.EINVAL
	}
	if members = slices.Delete(members, i, i+1); len(members) == 0 {
		delete(d.groups, group)
	} else {
		d.groups[group] = members
	}
	q.groups--
	return nil
}
