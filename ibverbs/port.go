package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// PortAttr is the state of a port.
type PortAttr struct {
	State          PortState
	PhysicalState  PhysState
	LinkLayer      LinkLayer
	MaxMTU         MTU
	ActiveMTU      MTU
	ActiveWidth    LinkWidth
	ActiveSpeed    LinkSpeed // of a lane
	GIDTableLen    int       // entries, empty ones too
	PKeyTableLen   int
	MaxMessageSize uint32 // bytes
	LID            uint16 // 0 on Ethernet
	SMLID          uint16 // of the subnet manager
	SMSL           uint8  // the service level to reach it
	LMC            uint8  // the port has 1<<LMC local identifiers, from LID on
	MaxVLs         int    // virtual lanes
	SubnetTimeout  uint8  // 4.096 us * 2^n is the longest way through the subnet
	InitTypeReply  uint8  // what the subnet manager kept when it initialised the port
	GRHRequired    bool   // addresses on this port need a GID even within the subnet
	BadPKeys       uint32 // packets of other partitions
	QKeyViolations uint32 // datagrams with a wrong key
	Capabilities   libibverbs.PortCapFlags
	Capabilities2  libibverbs.PortCapFlags2
}

// Rate is what the link carries with all its lanes, in Gb/s, 0 if that is not
// known.
func (p PortAttr) Rate() float64 { return p.ActiveSpeed.Rate() * float64(p.ActiveWidth.Lanes()) }

// virtualLanes is by the number that C has for them.
var virtualLanes = [...]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15}

// QueryPort returns the state of a port, the first of which is 1; see
// ibv_query_port(3).
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if err := d.self().Use(); err != nil {
		return PortAttr{}, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_port", d, port)
	if err != nil {
		return PortAttr{}, err
	}
	var a libibverbs.PortAttr
	if err := libibverbs.QueryPort(d.raw, n, &a); err != nil {
		return PortAttr{}, wrap(portName(d, port), err)
	}
	return portAttr(&a), nil
}

func portAttr(a *libibverbs.PortAttr) PortAttr {
	speed := a.ActiveSpeedEx
	if speed == 0 { // an older library
		speed = uint32(a.ActiveSpeed)
	}
	lanes := 0
	if int(a.MaxVlNum) < len(virtualLanes) {
		lanes = virtualLanes[a.MaxVlNum]
	}
	return PortAttr{
		State:          a.State,
		PhysicalState:  PhysState(a.PhysState),
		LinkLayer:      LinkLayer(a.LinkLayer),
		MaxMTU:         MTU(a.MaxMtu),
		ActiveMTU:      MTU(a.ActiveMtu),
		ActiveWidth:    LinkWidth(a.ActiveWidth),
		ActiveSpeed:    LinkSpeed(speed),
		GIDTableLen:    int(a.GidTblLen),
		PKeyTableLen:   int(a.PkeyTblLen),
		MaxMessageSize: a.MaxMsgSz,
		LID:            a.Lid,
		SMLID:          a.SmLid,
		SMSL:           a.SmSl,
		LMC:            a.Lmc,
		MaxVLs:         lanes,
		SubnetTimeout:  a.SubnetTimeout,
		InitTypeReply:  a.InitTypeReply,
		GRHRequired:    uint32(a.Flags)&uint32(libibverbs.IBV_QPF_GRH_REQUIRED) != 0,
		BadPKeys:       a.BadPkeyCntr,
		QKeyViolations: a.QkeyViolCntr,
		Capabilities:   libibverbs.PortCapFlags(a.PortCapFlags),
		Capabilities2:  libibverbs.PortCapFlags2(a.PortCapFlags2),
	}
}

// QueryPortSpeed returns what a port carries in effect, in Gb/s, which
// may be less than PortAttr.Rate. Libraries before rdma-core 62 and devices
// that cannot tell give errors.ErrUnsupported; see ibv_query_port_speed(3).
func (d *Device) QueryPortSpeed(port int) (float64, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_port_speed", d, port)
	if err != nil {
		return 0, err
	}
	speed, err := libibverbs.QueryPortSpeed(d.raw, uint32(n))
	if err != nil {
		return 0, wrap(portName(d, port), err)
	}
	return float64(speed) / 10, nil // of 100 Mb/s
}

// portNumber checks a port number before it is cut down to what C takes.
func portNumber(op string, d *Device, port int) (uint8, error) {
	if err := inRange("port", port, 1, 255); err != nil {
		return 0, cerr.Argument(op, d.Name(), err)
	}
	return uint8(port), nil
}

func portName(c *Device, port int) string { return fmt.Sprintf("%s port %d", c.Name(), port) }
