package ibverbs

import (
	"fmt"
	"math/rand/v2"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// QPAddr is what the other side needs to connect with a queue pair. It
// can be sent as a line of text or as JSON, over a socket for example.
type QPAddr struct {
	QPNum     uint32 // the queue pair's number, 24 bits
	PSN       uint32 // of the first packet that it sends, 24 bits
	QKey      uint32 // that datagrams to it need; 0 for connected queue pairs
	LID       uint16 // of the port, 0 for RoCE
	GID       GID    // of the port
	MTU       MTU    // the port's active one
	ReadDepth int    // RDMA reads and atomics that it answers at a time
	Port      int    // on its own device
	GIDIndex  int    // in its own port's table
}

// QPAddrOptions say which address of the device a queue pair takes.
type QPAddrOptions struct {
	Port int        // the zero value is the first active one
	GID  GIDOptions // which GIDs BestGID may take
	PSN  uint32     // the zero value is a random one
	QKey uint32     // of a datagram queue pair; the zero value is DefaultQKey
}

// DefaultQKey is the key of datagram queue pairs whose options have none.
const DefaultQKey = 0x11111111

// maxReadDepth is as much as an endpoint takes without being told to.
const maxReadDepth = 16

// Addr describes the queue pair to a peer, for ConnectTo on both sides, or
// for Activate. It asks the device for its port and GIDs; see
// ibv_query_port(3) and ibv_query_gid_ex(3). A port that is down is refused
// with syscall.ENETDOWN, and a GID that there is not with ErrNoGID.
func (qp *QP) Addr(options QPAddrOptions) (QPAddr, error) {
	if err := qp.self().Use(); err != nil {
		return QPAddr{}, err
	}
	defer qp.object.Done()
	c := qp.device
	device, err := c.QueryDevice()
	if err != nil {
		return QPAddr{}, err
	}
	number, port, err := activePort(c, device.Ports, options.Port)
	if err != nil {
		return QPAddr{}, err
	}
	gid, err := c.BestGID(number, options.GID)
	if err != nil {
		return QPAddr{}, err
	}
	e := QPAddr{
		QPNum: qp.Num(), PSN: options.PSN, LID: port.LID, GID: gid.GID, MTU: port.ActiveMTU,
		Port: number, GIDIndex: gid.Index,
	}
	if e.PSN == 0 {
		e.PSN = rand.Uint32N(1 << 24)
	}
	switch qp.Type() {
	case QPTypeRC:
		e.ReadDepth = min(device.MaxQPReadAtomic, maxReadDepth)
	case QPTypeUD:
		e.QKey = options.QKey
		if e.QKey == 0 {
			e.QKey = DefaultQKey
		}
	}
	if err := e.check(); err != nil {
		return QPAddr{}, cerr.Argument("QP.Addr", qp.object.Name(), err)
	}
	return e, nil
}

// activePort returns a port that is active: the one wanted, or the first of
// the device if that is 0.
func activePort(c *Device, ports, wanted int) (int, PortAttr, error) {
	first, last := wanted, wanted
	if wanted == 0 {
		first, last = 1, ports
	}
	for number := first; number <= last; number++ {
		port, err := c.QueryPort(number)
		if err != nil {
			return 0, PortAttr{}, err
		}
		if port.State == PortActive {
			return number, port, nil
		}
		if wanted != 0 {
			return 0, PortAttr{}, fmt.Errorf("%s is %s: %w", portName(c, number), port.State, syscall.ENETDOWN)
		}
	}
	return 0, PortAttr{}, fmt.Errorf("%s has no active port: %w", c.Name(), syscall.ENETDOWN)
}

// check refuses what cannot be an endpoint.
func (e QPAddr) check() error {
	switch {
	case e.QPNum == 0 || e.QPNum >= 1<<24:
		return badEndpoint("queue pair number %#x", e.QPNum)
	case e.PSN >= 1<<24:
		return badEndpoint("packet sequence number %#x", e.PSN)
	case e.LID == 0 && e.GID.IsZero():
		return badEndpoint("neither a LID nor a GID")
	case e.MTU.Bytes() == 0:
		return badEndpoint("MTU %d", uint32(e.MTU))
	case e.ReadDepth < 0 || e.ReadDepth > 255:
		return badEndpoint("read depth %d", e.ReadDepth)
	case e.Port < 1 || e.Port > 255:
		return badEndpoint("port %d", e.Port)
	case e.GIDIndex < 0 || e.GIDIndex > 255:
		return badEndpoint("GID index %d", e.GIDIndex)
	}
	return nil
}

func badEndpoint(format string, args ...any) error {
	return cerr.Invalid("endpoint with "+format, args...)
}

// needsGRH says whether packets from e to the peer need a global address.
func (e QPAddr) needsGRH(peer QPAddr, port PortAttr) bool {
	var own, its [8]byte // subnet prefixes
	copy(own[:], e.GID[:8])
	copy(its[:], peer.GID[:8])
	return port.LinkLayer == LinkEthernet || port.GRHRequired || peer.LID == 0 ||
		!peer.GID.IsZero() && own != its
}

// address returns the way from e to the peer.
func (e QPAddr) address(peer QPAddr, port PortAttr, options ConnectOptions) libibverbs.AhAttr {
	a := libibverbs.AhAttr{Dlid: peer.LID, PortNum: uint8(e.Port), Sl: options.SL}
	if e.needsGRH(peer, port) {
		a.IsGlobal = 1
		a.Grh = libibverbs.GlobalRoute{
			SgidIndex: uint8(e.GIDIndex), FlowLabel: options.FlowLabel,
			TrafficClass: options.TrafficClass, HopLimit: options.HopLimit,
		}
		*a.Grh.Dgid.Raw() = peer.GID
	}
	return a
}
