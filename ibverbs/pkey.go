package ibverbs

import (
	"errors"
	"fmt"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// PKey is the number of a partition, in the host's byte order. Its highest bit
// says that the port is a full member.
type PKey uint16

// PKeyDefault is the partition that every port is in, as a full member.
const PKeyDefault PKey = 0xffff

// FullMember reports whether the port may talk to all members of the
// partition, and not only to full ones.
func (p PKey) FullMember() bool { return p&0x8000 != 0 }

// String returns the number, as in 0xffff.
func (p PKey) String() string { return fmt.Sprintf("0x%04x", uint16(p)) }

// QueryPKey returns an entry of a port's P_Key table, 0 if it is empty; see
// ibv_query_pkey(3).
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

// QueryPKeyTable returns a port's whole P_Key table, empty entries included.
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

// ErrNoPKey says that a port's P_Key table has no such entry.
var ErrNoPKey = errors.New("no such P_Key")

// PKeyIndex returns where in a port's P_Key table pkey is, with its membership
// bit. If it is not there, the error is ErrNoPKey; see ibv_get_pkey_index(3).
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
		// C goes through the table until it cannot read on, and the errno is
		// whatever that left.
		return 0, fmt.Errorf("%s: %w as %s: %w", portName(d, port), ErrNoPKey, pkey, wrap(portName(d, port), err))
	}
	return index, nil
}
