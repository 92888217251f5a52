// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// PKey is a partition key in the host's byte order. The highest bit is set if
// the port is a full member.
type PKey uint16

// PKeyDefault is the key of full members of the default partition.
const PKeyDefault PKey = 0xffff

// FullMember reports whether the port is a full member, which may talk to all
// members of the partition, rather than only to full members.
func (p PKey) FullMember() bool { return p&0x8000 != 0 }

// String returns the key in hexadecimal, such as 0xffff.
func (p PKey) String() string { return fmt.Sprintf("0x%04x", uint16(p)) }

// QueryPKey returns the entry at index in a port's P_Key table, or 0 if the
// entry is empty; see ibv_query_pkey(3).
func (d *Device) QueryPKey(port, index int) (PKey, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_pkey", d, port)
	if err != nil {
		return 0, err
	}
	if err := inRange("index", index, 0, math.MaxInt32); err != nil {
		return 0, cerr.Argument("ibv_query_pkey", portName(d, port), err)
	}
	pkey, err := libibverbs.QueryPkey(d.raw, n, int32(index))
	if err != nil {
		return 0, wrap(portName(d, port), err)
	}
	return PKey(pkey.Host()), nil
}

// QueryPKeyTable returns a port's whole P_Key table, including empty entries.
func (d *Device) QueryPKeyTable(port int) ([]PKey, error) {
	p, err := d.QueryPort(port)
	if err != nil {
		return nil, err
	}
	table := make([]PKey, p.PKeyTableLen)
	for i := range table {
		if table[i], err = d.QueryPKey(port, i); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// ErrNoPKey reports that a port's P_Key table does not contain the P_Key.
var ErrNoPKey = errors.New("no such P_Key")

// PKeyIndex returns the index of pkey, including its membership bit, in a
// port's P_Key table; see ibv_get_pkey_index(3). If the table does not contain
// pkey, it fails with an error matching ErrNoPKey.
func (d *Device) PKeyIndex(port int, pkey PKey) (int, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_get_pkey_index", d, port)
	if err != nil {
		return 0, err
	}
	index, err := libibverbs.GetPkeyIndex(d.raw, n, libibverbs.NewBe16(uint16(pkey)))
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return 0, wrap(portName(d, port), err)
	case err != nil:
		// C searches the table until it cannot read an entry, and errno is
		// whatever that read left.
		return 0, fmt.Errorf("%s: %w as %s: %w", portName(d, port), ErrNoPKey, pkey, wrap(portName(d, port), err))
	}
	return index, nil
}
