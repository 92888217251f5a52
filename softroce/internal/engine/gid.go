// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// GIDEntry is an entry of the port's GID table. All entries have the type RoCE
// v2.
type GIDEntry struct {
	GID    wire.GID
	NetDev uint32 // index of the network interface
}

// SetGID sets an entry of the GID table; the zero GID empties it. A change
// makes an event. Objects that use the entry keep the old address. It fails
// with EINVAL if the entry does not exist.
func (d *Device) SetGID(index int, e GIDEntry) error {
	if err := d.check(); err != nil {
		return err
	}
	if index < 0 || index >= len(d.gids) {
		return syscall.EINVAL
	}
	if d.gids[index] != e {
		d.gids[index] = e
		clear(d.addresses)
		for _, e := range d.gids {
			d.addresses[e.GID] = e.GID != (wire.GID{})
		}
		d.event(libibverbs.IBV_EVENT_GID_CHANGE, portNum)
	}
	return nil
}

// GID returns the result of ibv_query_gid_ex. It fails with EINVAL if the port
// or entry does not exist, and with ENODATA if the entry is empty.
func (d *Device) GID(port, index uint32) (libibverbs.GidEntry, error) {
	if err := d.checkPort(port); err != nil {
		return libibverbs.GidEntry{}, err
	}
	if index >= gidTableSize {
		return libibverbs.GidEntry{}, syscall.EINVAL
	}
	e := d.gids[index]
	if e.GID == (wire.GID{}) {
		return libibverbs.GidEntry{}, noData
	}
	g := libibverbs.GidEntry{
		GidIndex: index, PortNum: port, GidType: uint32(libibverbs.IBV_GID_TYPE_ROCE_V2), NdevIfindex: e.NetDev,
	}
	*g.Gid.Raw() = e.GID
	return g, nil
}

// Has reports whether the GID is in the table.
func (d *Device) Has(g wire.GID) bool { return d.addresses[g] }

// GIDs returns the entries that are not empty.
func (d *Device) GIDs() ([]libibverbs.GidEntry, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	var all []libibverbs.GidEntry
	for i := range d.gids {
		if g, err := d.GID(portNum, uint32(i)); err == nil {
			all = append(all, g)
		}
	}
	return all, nil
}

// noData is ENODATA, which package syscall lacks on some systems.
const noData syscall.Errno = 61

// isMulticast reports whether the GID names a group: ff00::/8 or
// ::ffff:224.0.0.0/100.
func isMulticast(g wire.GID) bool { return g.Addr().IsMulticast() }
