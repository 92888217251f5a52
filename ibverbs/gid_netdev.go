package ibverbs

import (
	"bytes"
	"net"
	"net/netip"
	"slices"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// netDev is a network interface of this network namespace; the zero value is
// none.
type netDev struct {
	name  string
	index int
	mac   net.HardwareAddr
	addrs []netip.Addr
}

// netDevs remembers network interfaces by their number, because a GID table has
// the same ones again and again.
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
	addrs, _ := nic.Addrs() // it may have gone
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			d.addrs = append(d.addrs, prefix.Addr())
		}
	}
	return d
}

// has reports whether the GID can be of this interface. The kernel tells the
// number and the name of a GID's interface even to programs in other network
// namespaces, in which other interfaces may have them. But a GID is made from
// an address of its interface: an IP address, or the MAC.
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

func (n netDevs) entry(raw *libibverbs.GidEntry) GIDEntry {
	e := GIDEntry{Port: int(raw.PortNum), Index: int(raw.GidIndex), GID: GID(*raw.Gid.Raw()), Type: GIDType(raw.GidType)}
	e.setNetDev(n.byIndex(int(raw.NdevIfindex)))
	return e
}

// setNetDev takes the interface that the kernel has named for the GID, unless
// that is in another network namespace.
func (e *GIDEntry) setNetDev(d netDev) {
	e.NetDev, e.NetDevIndex = "", 0
	if d.has(e.GID) {
		e.NetDev, e.NetDevIndex = d.name, d.index
	}
}

// byName finds the interface that is called so in this network namespace.
func byName(name string) netDev {
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return netDev{}
	}
	return newNetDev(nic)
}
