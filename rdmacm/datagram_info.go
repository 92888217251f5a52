package rdmacm

import (
	"cmp"
	"context"
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// DialDatagramInfo is DialDatagram for what GetAddrInfo has found: the way to
// PortSpaceIPoIB and to addresses of InfiniBand's own. The source is the
// info's; LocalAddr does not count.
func (d *Dialer) DialDatagramInfo(ctx context.Context, info AddrInfo, config *DatagramConfig) (*DatagramConn, error) {
	if d == nil {
		return nil, cerr.Nil("Dialer.DialDatagramInfo", "dialer")
	}
	if err := ended("DialDatagramInfo", ctx); err != nil {
		return nil, err
	}
	info, err := info.forDatagrams()
	if err != nil {
		return nil, err
	}
	complete := config.withDefaults()
	complete.PrivateData = append(info.Connect[:len(info.Connect):len(info.Connect)], complete.PrivateData...)
	conn, err := d.dialDatagram(ctx, info, complete)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", info.name(info.DstIB, info.Dst), err)
	}
	return conn, nil
}

// ListenDatagramInfo is ListenDatagram for what GetAddrInfo has found with
// AddrPassive, as DialDatagramInfo is DialDatagram. The config may be nil.
func ListenDatagramInfo(ctx context.Context, info AddrInfo, config *ListenConfig) (*DatagramListener, error) {
	if err := ended("ListenDatagramInfo", ctx); err != nil {
		return nil, err
	}
	info, err := info.forDatagrams()
	if err != nil {
		return nil, err
	}
	ln, err := config.listenInfo(info)
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams on %s: %w", info.name(info.SrcIB, info.Src), err)
	}
	return &DatagramListener{ln}, nil
}

// forDatagrams returns the info with a port space for datagrams.
func (a AddrInfo) forDatagrams() (AddrInfo, error) {
	a.PortSpace = cmp.Or(a.PortSpace, PortSpaceUDP)
	return a, checkDatagrams(a.PortSpace)
}

// checkDatagrams refuses a port space that is for connections.
func checkDatagrams(ps PortSpace) error {
	if ps != PortSpaceUDP && ps != PortSpaceIPoIB {
		return cerr.Refuse("rdma_create_id", "", "port space %v is not for datagrams", ps)
	}
	return nil
}

// name returns the one of the two that is in the info's family.
func (a AddrInfo) name(ib, ip fmt.Stringer) fmt.Stringer {
	if a.Family == FamilyIB {
		return ib
	}
	return ip
}
