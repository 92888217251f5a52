// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/enum"
)

// GIDEntry is an entry of a port's GID table.
type GIDEntry struct {
	Port        int
	Index       int
	GID         GID
	Type        GIDType
	NetDev      string // name of the RoCE network interface; empty if the interface is in another network namespace, since the GID can be used only there
	NetDevIndex int    // index of that network interface, 0 if there is none
}

// String returns the entry, as in "port 1 index 2: ... (RoCE v2, eth0)".
func (e GIDEntry) String() string {
	s := fmt.Sprintf("port %d index %d: %s (%s", e.Port, e.Index, e.GID, e.Type)
	if e.NetDev != "" {
		s += ", " + e.NetDev
	}
	return s + ")"
}

// Addr returns the IP address of a RoCE GID. The zone of a link-local address
// is the network interface.
func (e GIDEntry) Addr() netip.Addr {
	if addr := e.GID.Addr(); addr.IsLinkLocalUnicast() {
		return addr.WithZone(e.NetDev) // IPv4 addresses take no zone
	}
	return e.GID.Addr()
}

// QueryGID returns the GID at an index of a port's GID table, or zero for an
// empty entry; see ibv_query_gid(3).
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

// noData is the kernel's error for an empty entry: ENODATA, which some systems
// do not define.
const noData = syscall.Errno(61)

// QueryGIDEntry returns an entry of a port's GID table with its type and
// network interface; see ibv_query_gid_ex(3). For an empty entry, the error
// matches ErrNoGID. If the C library cannot query entries, QueryGIDEntry reads
// /sys.
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
	return netDevs{}.entry(&raw).GIDEntry, nil
}

// QueryGIDTable returns the entries of all ports' GID tables that are not
// empty, by port and index; see ibv_query_gid_table(3). If the C library cannot
// query tables, QueryGIDTable reads /sys.
func (d *Device) QueryGIDTable() ([]GIDEntry, error) {
	all, err := d.gidTable()
	return entriesOf(all), err
}

// tableEntry is an entry of a GID table.
type tableEntry struct {
	GIDEntry
	elsewhere bool // whether the interface is in another network namespace
}

func entriesOf(all []tableEntry) (entries []GIDEntry) {
	for _, e := range all {
		entries = append(entries, e.GIDEntry)
	}
	return entries
}

func (d *Device) gidTable() ([]tableEntry, error) {
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
	entries := make([]tableEntry, 0, n)
	for i := range raw[:min(n, size)] {
		entries = append(entries, devices.entry(&raw[i]))
	}
	return entries, nil
}

// QueryPortGIDs returns the entries of one port's GID table that are not empty,
// by index. It fails if the device does not have the port.
func (d *Device) QueryPortGIDs(port int) ([]GIDEntry, error) {
	all, err := d.portGIDs(port)
	return entriesOf(all), err
}

func (d *Device) portGIDs(port int) ([]tableEntry, error) {
	if _, err := d.QueryPort(port); err != nil { // for an unknown port, gidTable would have no entries, and no error
		return nil, err
	}
	all, err := d.gidTable()
	return slices.DeleteFunc(all, func(e tableEntry) bool { return e.Port != port }), err
}

// portNumbers returns the device's port numbers.
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

// ErrNoGID reports that a port's GID table has no such entry.
var ErrNoGID = errors.New("no such GID")

// GIDType is the protocol of a GID.
type GIDType uint32

// The types of GIDs. RoCE v2 runs over UDP, so it can be routed.
const (
	GIDTypeIB     GIDType = GIDType(libibverbs.IBV_GID_TYPE_IB)
	GIDTypeRoCEv1 GIDType = GIDType(libibverbs.IBV_GID_TYPE_ROCE_V1)
	GIDTypeRoCEv2 GIDType = GIDType(libibverbs.IBV_GID_TYPE_ROCE_V2)
)

var gidTypes = enum.Values{Type: "GIDType", Names: []enum.Name{
	{Value: int64(GIDTypeIB), Name: "IB"},
	{Value: int64(GIDTypeRoCEv1), Name: "RoCE v1"},
	{Value: int64(GIDTypeRoCEv2), Name: "RoCE v2"},
}}

// String returns the name of the protocol, such as RoCE v2.
func (t GIDType) String() string { return gidTypes.String(int64(t)) }

// MarshalText returns the text of String.
func (t GIDType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText parses the output of String.
func (t *GIDType) UnmarshalText(text []byte) error { return enum.UnmarshalText(&gidTypes, text, t) }

// ParseGID parses a GID in IPv6 notation, or an IPv4 address, for which it
// returns the RoCE v2 GID.
func ParseGID(s string) (GID, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return GID{}, fmt.Errorf("%q is not a GID, which is written as an IPv6 or IPv4 address without a zone", s)
	}
	return GIDFromAddr(addr), nil
}

// GIDFromAddr returns the RoCE v2 GID of an IP address. It drops an IPv6 zone.
func GIDFromAddr(addr netip.Addr) GID {
	if !addr.IsValid() {
		return GID{}
	}
	return GID(addr.As16())
}

// MarshalText returns the text of String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses the text as ParseGID does.
func (g *GID) UnmarshalText(text []byte) error {
	parsed, err := ParseGID(string(text))
	if err == nil {
		*g = parsed
	}
	return err
}

// ParseGUID parses the output of GUID.String, or 16 hexadecimal digits with or
// without 0x.
func ParseGUID(s string) (GUID, error) {
	digits := strings.TrimPrefix(s, "0x")
	if groups := strings.Split(digits, ":"); len(groups) == 4 {
		digits = ""
		for _, g := range groups {
			digits += strings.Repeat("0", max(4-len(g), 0)) + g
		}
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || len(digits) != 16 {
		return 0, fmt.Errorf("%q is not a GUID, which has 16 hexadecimal digits", s)
	}
	return GUID(v), nil
}

// MarshalText returns the text of String.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses the text as ParseGUID does.
func (g *GUID) UnmarshalText(text []byte) error {
	parsed, err := ParseGUID(string(text))
	if err == nil {
		*g = parsed
	}
	return err
}

// GIDConfig restricts the choice of a GID. The zero value allows all.
type GIDConfig struct {
	Types  []GIDType  // only these types; nil means all
	NetDev string     // only GIDs of this network interface; empty means all
	Addr   netip.Addr // only GIDs of this IP address, and of the interface of its zone if it has one; zero means all
}

func (o GIDConfig) allow(e GIDEntry) bool {
	return (o.Types == nil || slices.Contains(o.Types, e.Type)) &&
		(o.NetDev == "" || o.NetDev == e.NetDev) &&
		(!o.Addr.IsValid() || o.Addr.Unmap().WithZone("") == e.GID.Addr() && e.inZone(o.Addr.Zone()))
}

// inZone reports whether the entry belongs to the network interface zone, which
// is a name or an index. It returns true if zone is empty, and on InfiniBand,
// where entries have no interface.
func (e GIDEntry) inZone(zone string) bool {
	return zone == "" || e.Type == GIDTypeIB || e.NetDev == zone || e.NetDevIndex != 0 && strconv.Itoa(e.NetDevIndex) == zone
}

// BestGID returns the GID of a port to connect with. On RoCE it prefers IPv4
// and global IPv6 addresses to addresses of the link or the loopback interface.
// Among equally good addresses, it prefers RoCE v2 to v1. Of equally good GIDs
// it returns the first, which on InfiniBand is at index 0. It never returns a
// GID whose network interface is in another network namespace, such as that of
// the host, for a program in a container. If options allow none, the error
// matches ErrNoGID and lists the port's GIDs.
func (d *Device) BestGID(port int, options GIDConfig) (GIDEntry, error) {
	entries, err := d.portGIDs(port)
	if err != nil {
		return GIDEntry{}, err
	}
	best, ok := bestGID(entries, options)
	if !ok {
		return GIDEntry{}, noGID(portName(d, port), entries)
	}
	return best, nil
}

// FindGID returns the GID of an IP address on any port. If there are several,
// it prefers RoCE v2. It ignores addresses in other network namespaces. If
// there is none, the error matches ErrNoGID and lists the device's GIDs.
func (d *Device) FindGID(addr netip.Addr) (GIDEntry, error) {
	entries, err := d.gidTable()
	if err != nil {
		return GIDEntry{}, err
	}
	best, ok := bestGID(entries, GIDConfig{Addr: addr})
	if !ok || !addr.IsValid() {
		return GIDEntry{}, noGID(fmt.Sprintf("%s: address %s", d.Name(), addr), entries)
	}
	return best, nil
}

func bestGID(entries []tableEntry, options GIDConfig) (best GIDEntry, ok bool) {
	for _, e := range entries {
		if !e.elsewhere && options.allow(e.GIDEntry) && (!ok || e.rank() > best.rank()) {
			best, ok = e.GIDEntry, true
		}
	}
	return best, ok
}

// rank returns a higher number for a better GID.
func (e GIDEntry) rank() int {
	rank := 0
	if e.Type == GIDTypeRoCEv2 {
		rank++
	}
	if addr := e.GID.Addr(); e.Type != GIDTypeIB && !addr.IsLinkLocalUnicast() && !addr.IsLoopback() {
		rank += 2
	}
	return rank
}

// gidsShown is the maximum number of GIDs that an error lists.
const gidsShown = 8

func noGID(object string, all []tableEntry) error {
	if len(all) == 0 {
		return fmt.Errorf("%s: %w: the GID table is empty%s", object, ErrNoGID, cerr.Doctor)
	}
	entries := slices.DeleteFunc(slices.Clone(all), func(e tableEntry) bool { return e.elsewhere })
	if len(entries) == 0 {
		return fmt.Errorf("%s: %w: all GIDs are of network interfaces in other network namespaces; this namespace, such as a container's, "+
			"needs an interface of the device with an address%s", object, ErrNoGID, cerr.Doctor)
	}
	var list []string
	for _, e := range entries[:min(len(entries), gidsShown)] {
		list = append(list, e.String())
	}
	if more := len(entries) - gidsShown; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	if others := len(all) - len(entries); others > 0 {
		list = append(list, fmt.Sprintf("and %d in other network namespaces", others))
	}
	return fmt.Errorf("%s: %w: there are %s", object, ErrNoGID, strings.Join(list, "; "))
}

// netDev is a network interface of this network namespace. The zero value
// stands for no interface.
type netDev struct {
	name  string
	index int
	mac   net.HardwareAddr
	addrs []netip.Addr
}

// netDevs caches network interfaces by index, because the entries of a GID
// table repeat them.
type netDevs map[int]netDev

func (n netDevs) byIndex(index int) netDev {
	d, ok := n[index]
	if !ok && index != 0 {
		if nic, err := net.InterfaceByIndex(index); err == nil {
			d = newNetDev(nic)
		}
		n[index] = d
	}
	return d
}

func newNetDev(nic *net.Interface) netDev {
	d := netDev{name: nic.Name, index: nic.Index, mac: nic.HardwareAddr}
	addrs, _ := nic.Addrs() // fails if the interface was removed meanwhile
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			d.addrs = append(d.addrs, prefix.Addr())
		}
	}
	return d
}

// has reports whether the GID can belong to this interface. The kernel reports
// the index and the name of a GID's interface even to programs in other network
// namespaces, where another interface may have the same index and name. But a
// GID consists of an IP address or the MAC of its interface, which has
// compares.
func (d netDev) has(gid GID) bool {
	if slices.Contains(d.addrs, gid.Addr()) {
		return true
	}
	if len(d.mac) != 6 {
		return false
	}
	eui := []byte{d.mac[0] ^ 2, d.mac[1], d.mac[2], 0xff, 0xfe, d.mac[3], d.mac[4], d.mac[5]}
	isDefault := gid.Addr().IsLinkLocalUnicast() && bytes.Equal(gid[8:], eui)
	var iWARP GID
	copy(iWARP[:], d.mac)
	return isDefault || gid == iWARP
}

func (n netDevs) entry(raw *libibverbs.GidEntry) tableEntry {
	e := GIDEntry{Port: int(raw.PortNum), Index: int(raw.GidIndex), GID: GID(*raw.Gid.Raw()), Type: GIDType(raw.GidType)}
	return e.on(n.byIndex(int(raw.NdevIfindex)), raw.NdevIfindex != 0)
}

// on returns the entry with the network interface d, if d has the GID. isNamed
// says whether the kernel names an interface for the entry. If it does and d
// does not have the GID, the interface is in another network namespace.
func (e GIDEntry) on(d netDev, isNamed bool) tableEntry {
	e.NetDev, e.NetDevIndex = "", 0
	if d.has(e.GID) {
		e.NetDev, e.NetDevIndex = d.name, d.index
	}
	return tableEntry{GIDEntry: e, elsewhere: isNamed && e.NetDev == "" && e.Type != GIDTypeIB}
}

// byName returns the network interface with this name in this network
// namespace, or the zero netDev if there is none.
func byName(name string) netDev {
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return netDev{}
	}
	return newNetDev(nic)
}

// sysfs is the directory in which the kernel describes each device.
type sysfs string

const kernelSysfs sysfs = "/sys/class/infiniband"

// devices returns the names of the kernel's RDMA devices. There are none if the
// kernel has no RDMA support loaded.
func (s sysfs) devices() (names []string) {
	entries, _ := os.ReadDir(string(s))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// gids returns the entries of a port's GID table that are not empty, without
// NetDevIndex. NetDev may name an interface of another network namespace.
func (s sysfs) gids(device string, port int, layer link.Layer) ([]GIDEntry, error) {
	files, err := os.ReadDir(s.port(device, port, "gids"))
	if err != nil {
		return nil, err
	}
	byIndex := make([]*GIDEntry, len(files))
	for _, f := range files {
		index, err := strconv.Atoi(f.Name())
		if err != nil || index < 0 || index >= len(byIndex) {
			return nil, fmt.Errorf("%s: unexpected file name in a GID table of %d entries", s.port(device, port, "gids", f.Name()), len(files))
		}
		e, err := s.gid(device, port, index, layer)
		if errors.Is(err, ErrNoGID) {
			continue
		}
		if err != nil {
			return nil, err
		}
		byIndex[index] = &e
	}
	var entries []GIDEntry
	for _, e := range byIndex {
		if e != nil {
			entries = append(entries, *e)
		}
	}
	return entries, nil
}

// gid returns the entry at index of a port's GID table. For an empty entry, the
// error matches ErrNoGID.
func (s sysfs) gid(device string, port, index int, layer link.Layer) (GIDEntry, error) {
	e := GIDEntry{Port: port, Index: index}
	text, err := s.read(device, port, "gids", index)
	if err != nil {
		return e, err
	}
	if e.GID, err = ParseGID(text); err != nil {
		return e, fmt.Errorf("%s: %w", s.port(device, port, "gids", strconv.Itoa(index)), err)
	}
	if e.GID.IsZero() {
		return e, fmt.Errorf("%s port %d: %w at index %d", device, port, ErrNoGID, index)
	}
	if text, err = s.optional(device, port, "gid_attrs/types", index); err != nil {
		return e, err
	}
	switch {
	case text == "RoCE v2":
		e.Type = GIDTypeRoCEv2
	case text != "" && text != "IB/RoCE v1":
		return e, fmt.Errorf("%s: unknown GID type %q",
			s.port(device, port, "gids", strconv.Itoa(index)), text)
	case layer == link.Ethernet:
		e.Type = GIDTypeRoCEv1
	}
	e.NetDev, err = s.optional(device, port, "gid_attrs/ndevs", index)
	return e, err
}

func (s sysfs) port(device string, port int, names ...string) string {
	return filepath.Join(append([]string{string(s), device, "ports", strconv.Itoa(port)}, names...)...)
}

func (s sysfs) read(device string, port int, attr string, index int) (string, error) {
	b, err := os.ReadFile(s.port(device, port, attr, strconv.Itoa(index)))
	return strings.TrimSpace(string(b)), err
}

// optional reads a file that may be missing, as old kernels do not have it, or
// that the kernel refuses to read, with EINVAL, because it has no value. In
// both cases, optional returns "".
func (s sysfs) optional(device string, port int, attr string, index int) (string, error) {
	text, err := s.read(device, port, attr, index)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
		return "", nil
	}
	return text, err
}

// sysfsGID does what QueryGIDEntry does, if the C library cannot query entries.
func (d *Device) sysfsGID(port, index int) (GIDEntry, error) {
	p, err := d.QueryPort(port)
	if err != nil {
		return GIDEntry{}, err
	}
	e, err := kernelSysfs.gid(d.Name(), port, index, p.LinkLayer)
	if err != nil {
		return GIDEntry{}, err
	}
	return e.on(byName(e.NetDev), e.NetDev != "").GIDEntry, nil
}

// sysfsGIDs does what QueryGIDTable does, if the C library cannot query tables.
func (d *Device) sysfsGIDs(ports []int) ([]tableEntry, error) {
	var all []tableEntry
	for _, port := range ports {
		p, err := d.QueryPort(port)
		if err != nil {
			return nil, err
		}
		entries, err := kernelSysfs.gids(d.Name(), port, p.LinkLayer)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, e.on(byName(e.NetDev), e.NetDev != ""))
		}
	}
	return all, nil
}
