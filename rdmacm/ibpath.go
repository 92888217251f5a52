// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"cmp"
	"math/bits"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// An IBPath is a path to the peer, like a path record of an InfiniBand subnet.
// Numbers are in host byte order.
type IBPath struct {
	Flags          uint32 // IBV_PATH_FLAG bits; 0 means those of a connection's path
	ServiceID      uint64
	SGID, DGID     ibverbs.GID
	SLID, DLID     uint16 // 0 on RoCE
	FlowLabel      uint32 // 20 bits
	HopLimit       uint8
	TrafficClass   uint8
	Reversible     bool // whether the path also leads back
	NumPaths       uint8
	PKey           ibverbs.PKey  // 0 means ibverbs.PKeyDefault
	QoSClass       uint16        // 12 bits
	SL             uint8         // service level, up to 15
	MTU            ibverbs.MTU   // MTU of the whole path
	Rate           ibverbs.Rate  // rate of the whole path
	PacketLifetime time.Duration // maximum travel time of a packet, rounded up to 4.096 us * 2^n
	Preference     uint8         // 0 is the best of several paths
}

// ofConnection holds the flags of the only kind of path that Linux accepts.
const ofConnection = libibverbs.IBV_PATH_FLAG_GMP | libibverbs.IBV_PATH_FLAG_PRIMARY | libibverbs.IBV_PATH_FLAG_BIDIRECTIONAL

// In a path record, the MTU, the rate and the packet lifetime have 8 bits: 2
// that say how to compare the number, and the number itself.
const (
	exactly = 2 << 6
	number6 = 1<<6 - 1
)

func (p *IBPath) raw() libibverbs.PathData {
	raw := libibverbs.PathData{
		Flags: cmp.Or(p.Flags, ofConnection),
		Path: libibverbs.PathRecord{
			ServiceId: libibverbs.NewBe64(p.ServiceID), Dlid: libibverbs.NewBe16(p.DLID), Slid: libibverbs.NewBe16(p.SLID),
			FlowlabelHoplimit: libibverbs.NewBe32(p.FlowLabel<<8 | uint32(p.HopLimit)), Tclass: p.TrafficClass,
			ReversibleNumpath: p.NumPaths, Pkey: libibverbs.NewBe16(uint16(cmp.Or(p.PKey, ibverbs.PKeyDefault))),
			QosclassSl: libibverbs.NewBe16(p.QoSClass<<4 | uint16(p.SL)), Mtu: exactly | uint8(p.MTU), Rate: exactly | uint8(p.Rate),
			Packetlifetime: exactly | lifetime(p.PacketLifetime), Preference: p.Preference,
		},
	}
	*raw.Path.Sgid.Raw(), *raw.Path.Dgid.Raw() = p.SGID, p.DGID
	if p.Reversible {
		raw.Path.ReversibleNumpath |= libibverbs.IBV_PATH_RECORD_REVERSIBLE
	}
	return raw
}

// check rejects numbers that do not fit into a path record.
func (p *IBPath) check() error {
	for _, f := range []struct {
		name     string
		n, limit uint32
	}{
		{"FlowLabel", p.FlowLabel, 1<<20 - 1},
		{"NumPaths", uint32(p.NumPaths), 1<<7 - 1},
		{"QoSClass", uint32(p.QoSClass), 1<<12 - 1},
		{"SL", uint32(p.SL), 1<<4 - 1},
		{"MTU", uint32(p.MTU), number6},
		{"Rate", uint32(p.Rate), number6},
	} {
		if f.n > f.limit {
			return cerr.Invalid("IBPath.%s is %d, not from 0 to %d", f.name, f.n, f.limit)
		}
	}
	return nil
}

// lifetime returns the smallest n for which 4.096 us * 2^n is at least d.
func lifetime(d time.Duration) uint8 { return uint8(bits.Len64(uint64(max(d, 1)-1) / 4096)) }

// maxLifetime is the greatest n for which 4.096 us * 2^n fits into a
// time.Duration.
const maxLifetime = 50

// ibPath converts a path from C's form.
func ibPath(raw *libibverbs.PathData) IBPath {
	r := &raw.Path
	flow, class := r.FlowlabelHoplimit.Host(), r.QosclassSl.Host()
	return IBPath{
		Flags: raw.Flags, ServiceID: r.ServiceId.Host(), SGID: *r.Sgid.Raw(), DGID: *r.Dgid.Raw(),
		SLID: r.Slid.Host(), DLID: r.Dlid.Host(), FlowLabel: flow >> 8 & (1<<20 - 1), HopLimit: uint8(flow), TrafficClass: r.Tclass,
		Reversible: r.ReversibleNumpath&libibverbs.IBV_PATH_RECORD_REVERSIBLE != 0,
		NumPaths:   r.ReversibleNumpath &^ libibverbs.IBV_PATH_RECORD_REVERSIBLE,
		PKey:       ibverbs.PKey(r.Pkey.Host()), QoSClass: class >> 4, SL: uint8(class & 15),
		MTU: ibverbs.MTU(r.Mtu & number6), Rate: ibverbs.Rate(r.Rate & number6),
		PacketLifetime: 4096 << min(r.Packetlifetime&number6, maxLifetime), Preference: r.Preference,
	}
}

// SetIBPaths sets the paths to the peer. Linux uses the first path whose Flags
// are those of a connection. Call SetIBPaths instead of ResolveRoute; it also
// works with IP addresses. EventRouteResolved follows. See rdma_set_option(3).
func (id *ID) SetIBPaths(paths ...IBPath) error {
	if len(paths) == 0 {
		return cerr.Refuse("rdma_set_option", id.name(), "SetIBPaths needs at least one path")
	}
	raw := make([]libibverbs.PathData, len(paths))
	for i := range paths {
		if err := paths[i].check(); err != nil {
			return cerr.Argument("rdma_set_option", id.name(), err)
		}
		raw[i] = paths[i].raw()
	}
	return id.setOption(librdmacm.RDMA_OPTION_IB, int32(librdmacm.RDMA_OPTION_IB_PATH),
		unsafe.Pointer(&raw[0]), unsafe.Sizeof(raw[0])*uintptr(len(raw)))
}
