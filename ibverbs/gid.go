package ibverbs

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// GIDEntry is an entry of a port's GID table.
type GIDEntry struct {
	Port        int
	Index       int
	GID         GID
	Type        GIDType
	NetDev      string // the network interface of RoCE, empty if there is none in this network namespace
	NetDevIndex int    // and its number, 0 if there is none
}

// String returns the entry as in "port 1 index 2: ... (RoCE v2, eth0)".
func (e GIDEntry) String() string {
	s := fmt.Sprintf("port %d index %d: %s (%s", e.Port, e.Index, e.GID, e.Type)
	if e.NetDev != "" {
		s += ", " + e.NetDev
	}
	return s + ")"
}

// Addr returns the IP address that a GID of RoCE stands for. That of one link
// has the network interface as its zone.
func (e GIDEntry) Addr() netip.Addr {
	if addr := e.GID.Addr(); addr.IsLinkLocalUnicast() {
		return addr.WithZone(e.NetDev) // which only IPv6 takes
	}
	return e.GID.Addr()
}

// QueryGID returns an entry of a port's GID table, which is zero if the entry
// is empty; see ibv_query_gid(3).
func (d *Device) QueryGID(port, index int) (GID, error) {
	if err := d.self().Use(); err != nil {
		return GID{}, err
	}
	defer d.object.Done()
	n, err := gidNumbers("ibv_query_gid", d, port, index)
	if err != nil {
		return GID{}, err
	}
	var g libibverbs.Gid
	if err := libibverbs.QueryGid(d.raw, n, int32(index), &g); err != nil {
		return GID{}, wrap(portName(d, port), err)
	}
	return GID(*g.Raw()), nil
}

// noData is what the kernel answers for an empty entry: ENODATA, which not every
// system has a name for.
const noData = syscall.Errno(61)

// QueryGIDEntry returns an entry of a port's GID table with its type and
// network interface. An empty entry is ErrNoGID; see ibv_query_gid_ex(3). If
// that cannot be asked, it reads what the kernel has in /sys.
func (d *Device) QueryGIDEntry(port, index int) (GIDEntry, error) {
	if err := d.self().Use(); err != nil {
		return GIDEntry{}, err
	}
	defer d.object.Done()
	n, err := gidNumbers("ibv_query_gid_ex", d, port, index)
	if err != nil {
		return GIDEntry{}, err
	}
	var raw libibverbs.GidEntry
	err = libibverbs.QueryGidEx(d.raw, uint32(n), uint32(index), &raw, 0)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return d.sysfsGID(port, index)
	case errors.Is(err, noData):
		return GIDEntry{}, fmt.Errorf("%s: %w at index %d", portName(d, port), ErrNoGID, index)
	case err != nil:
		return GIDEntry{}, wrap(portName(d, port), err)
	}
	return netDevs{}.entry(&raw), nil
}

// QueryGIDTable returns the entries of all ports' GID tables that are not
// empty, by port and index; see ibv_query_gid_table(3). If that cannot be
// asked, it reads what the kernel has in /sys.
func (d *Device) QueryGIDTable() ([]GIDEntry, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	ports, err := d.portNumbers()
	if err != nil {
		return nil, err
	}
	size := 0
	for _, port := range ports {
		p, err := d.QueryPort(port)
		if err != nil {
			return nil, err
		}
		size += p.GIDTableLen
	}
	if size <= 0 {
		return nil, nil
	}
	raw := make([]libibverbs.GidEntry, size)
	n, err := libibverbs.QueryGidTable(d.raw, &raw[0], uint64(size), 0)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return d.sysfsGIDs(ports)
	case err != nil:
		return nil, wrap(d.Name(), err)
	}
	devices := netDevs{}
	entries := make([]GIDEntry, 0, n)
	for i := range raw[:min(n, size)] {
		entries = append(entries, devices.entry(&raw[i]))
	}
	return entries, nil
}

// QueryPortGIDs is QueryGIDTable for one port, which the device must have.
func (d *Device) QueryPortGIDs(port int) ([]GIDEntry, error) {
	if _, err := d.QueryPort(port); err != nil { // the table would only be empty
		return nil, err
	}
	all, err := d.QueryGIDTable()
	var entries []GIDEntry
	for _, e := range all {
		if e.Port == port {
			entries = append(entries, e)
		}
	}
	return entries, err
}

// portNumbers returns the device's ports that QueryPort can be asked about.
func (d *Device) portNumbers() ([]int, error) {
	a, err := d.QueryDevice()
	if err != nil {
		return nil, err
	}
	var ports []int
	for port := 1; port <= a.Ports; port++ {
		ports = append(ports, port)
	}
	return ports, nil
}

func gidNumbers(op string, d *Device, port, index int) (uint8, error) {
	if err := inRange("index", index, 0, math.MaxInt32); err != nil {
		return 0, cerr.Argument(op, portName(d, port), err)
	}
	return portNumber(op, d, port)
}
