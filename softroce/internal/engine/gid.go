// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// GIDEntry is an entry of the port's GID table. All entries have the type RoCE
// v2. An entry with a zero GID is empty.
type GIDEntry struct {
	GID    wire.GID
	NetDev uint32 // index of the network interface that has the address; 0: none
}

// SetGID sets the entry index of the GID table; a zero GID empties it. If the
// entry changes, SetGID reports an asynchronous event. Objects that use the
// entry keep the old address. SetGID fails with EINVAL if the table has no such
// entry.
func (d *Device) SetGID(index int, e GIDEntry) error {
	if err := d.check(); err != nil {
		return err
	}
	if index < 0 || index >= len(d.gids) {
		return syscall.EINVAL
	}
	if d.gids[index] != e {
		d.gids[index], d.listed = e, nil
		clear(d.addresses)
		for _, e := range d.gids {
			d.addresses[e.GID] = e.GID != (wire.GID{})
		}
		d.event(libibverbs.IBV_EVENT_GID_CHANGE, portNum)
	}
	return nil
}

// GID returns what ibv_query_gid_ex returns. It fails with EINVAL if the port
// or the entry does not exist, and with ENODATA if the entry is empty.
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
		GidIndex: index, PortNum: port, GidType: libibverbs.IBV_GID_TYPE_ROCE_V2, NdevIfindex: e.NetDev,
	}
	*g.Gid.Raw() = e.GID
	return g, nil
}

// Has reports whether the GID g is in the table.
func (d *Device) Has(g wire.GID) bool { return d.addresses[g] }

// GIDs returns the entries of the table that are not empty. The caller must not
// change them.
func (d *Device) GIDs() ([]libibverbs.GidEntry, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if d.listed == nil {
		for i := range d.gids {
			if g, err := d.GID(portNum, uint32(i)); err == nil {
				d.listed = append(d.listed, g)
			}
		}
	}
	return d.listed, nil
}

// noData is ENODATA. Package syscall does not define it on all systems.
const noData syscall.Errno = 61

// isMulticast reports whether g is a multicast address: in ff00::/8, or an IPv4
// multicast address in the form ::ffff:224.0.0.0/100.
func isMulticast(g wire.GID) bool { return g.Addr().IsMulticast() }
