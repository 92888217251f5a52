package rdmacm

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-go/verbena/ibverbs"
)

// groupSender returns the way back to who sent a datagram to the group that is
// at the end of a path, and false for other datagrams. C cannot tell, because it
// looks for the group's address among those of the port.
func groupSender(group ibverbs.AHAttr, wc *ibverbs.WC, header []byte) (ibverbs.AHAttr, bool) {
	// RoCE v2 with IPv4 has that one's header in the second half.
	four := header[ibverbs.GRHLen/2:]
	if to := group.DGID.Addr(); to.Is4() {
		if netip.AddrFrom4([4]byte(four[16:])) != to {
			return ibverbs.AHAttr{}, false
		}
		return ibverbs.AHAttr{
			Port: group.Port, SGIDIndex: group.SGIDIndex, HopLimit: multicastHops, TrafficClass: four[1],
			DGID: ibverbs.GIDFromAddr(netip.AddrFrom4([4]byte(four[12:]))),
		}, true
	}
	if ibverbs.GID(header[24:]) != group.DGID {
		return ibverbs.AHAttr{}, false
	}
	classFlow := binary.BigEndian.Uint32(header)
	return ibverbs.AHAttr{
		Port: group.Port, DLID: uint16(wc.SLID()), SL: wc.SL(),
		DGID: ibverbs.GID(header[8:]), SGIDIndex: group.SGIDIndex, HopLimit: multicastHops,
		TrafficClass: uint8(classFlow >> 20), FlowLabel: classFlow & (1<<20 - 1),
	}, true
}
