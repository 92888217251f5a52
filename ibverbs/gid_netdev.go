package ibverbs

import (
	"net"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// netDevs remembers names of network interfaces by their number, because a
// GID table has the same ones again and again.
type netDevs map[int]string

// name is empty for an interface of another network namespace.
func (n netDevs) name(index int) string {
	if index == 0 {
		return ""
	}
	name, ok := n[index]
	if !ok {
		if nic, err := net.InterfaceByIndex(index); err == nil {
			name = nic.Name
		}
		n[index] = name
	}
	return name
}

func (n netDevs) entry(raw *libibverbs.GidEntry) GIDEntry {
	index := int(raw.NdevIfindex)
	return GIDEntry{
		Port: int(raw.PortNum), Index: int(raw.GidIndex), GID: GID(*raw.Gid.Raw()),
		Type: GIDType(raw.GidType), NetDev: n.name(index), NetDevIndex: index,
	}
}

// netDevIndex is 0 for a name without an interface in this network namespace.
func netDevIndex(name string) int {
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return nic.Index
}
