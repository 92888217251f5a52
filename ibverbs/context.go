package ibverbs

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Context is an open device. Its methods may be called concurrently.
type Context struct {
	object  object.Object
	raw     *libibverbs.Context
	destroy func() error
	events  asyncEvents
	removed atomic.Bool // the kernel said so; see isRemoved
}

// ContextFromRaw makes a Context of a device that something else keeps open
// for the whole life of the program, as librdmacm can. Its Close leaves the
// device open, and OpenObjects does not list it.
func ContextFromRaw(raw *libibverbs.Context) (*Context, error) {
	if raw == nil || raw.Device == nil {
		return nil, cerr.Nil("ContextFromRaw", "raw")
	}
	c := &Context{raw: raw, destroy: func() error { return nil }}
	c.object.InitUnlisted(cString(raw.Device.Name[:]))
	return c, nil
}

// Name returns the device's name.
func (c *Context) Name() string { return c.object.Name() }

// Raw returns the C object, for the functions of package libibverbs. It is
// valid until Close.
func (c *Context) Raw() *libibverbs.Context { return c.raw }

// Close closes the device, and wakes whoever waits for its events; see
// ibv_close_device(3). While the context has protection domains, completion
// channels or completion queues, it does nothing and returns a BusyError.
func (c *Context) Close() error {
	return c.self().Close(c.stopEvents, func() error { return cerr.Wrap(c.Name(), c.destroy()) })
}

// DeviceAttr is what a device can do. Counts are upper limits.
type DeviceAttr struct {
	FirmwareVersion     string
	NodeGUID            GUID
	SystemImageGUID     GUID
	MaxMRSize           uint64 // bytes
	PageSizeCap         uint64 // bit n set: memory pages of 1<<n bytes
	VendorID            uint32
	VendorPartID        uint32
	HardwareVersion     uint32
	MaxQP               int
	MaxQPWR             int // requests in one queue
	Capabilities        libibverbs.DeviceCapFlags
	MaxSGE              int // segments of one request
	MaxSGERead          int // segments of one RDMA read
	MaxCQ               int
	MaxCQE              int // entries of one completion queue
	MaxMR               int
	MaxPD               int
	MaxQPReadAtomic     int // RDMA reads and atomics that one QP can answer at a time
	MaxQPInitReadAtomic int // and that it can have under way
	AtomicCap           libibverbs.AtomicCap
	MaxMW               int
	MaxMcastGroups      int
	MaxAH               int
	MaxSRQ              int
	MaxSRQWR            int
	MaxSRQSGE           int
	MaxPKeys            int
	PhysicalPorts       int
}

// QueryDevice returns what the device can do; see ibv_query_device(3).
func (c *Context) QueryDevice() (DeviceAttr, error) {
	if err := c.self().Use(); err != nil {
		return DeviceAttr{}, err
	}
	defer c.object.Done()
	var a libibverbs.DeviceAttr
	if err := libibverbs.QueryDevice(c.raw, &a); err != nil {
		return DeviceAttr{}, cerr.Wrap(c.Name(), err)
	}
	return DeviceAttr{
		FirmwareVersion:     cString(a.FwVer[:]),
		NodeGUID:            GUID(a.NodeGuid.Host()),
		SystemImageGUID:     GUID(a.SysImageGuid.Host()),
		MaxMRSize:           a.MaxMrSize,
		PageSizeCap:         a.PageSizeCap,
		VendorID:            a.VendorId,
		VendorPartID:        a.VendorPartId,
		HardwareVersion:     a.HwVer,
		MaxQP:               int(a.MaxQp),
		MaxQPWR:             int(a.MaxQpWr),
		Capabilities:        libibverbs.DeviceCapFlags(a.DeviceCapFlags),
		MaxSGE:              int(a.MaxSge),
		MaxSGERead:          int(a.MaxSgeRd),
		MaxCQ:               int(a.MaxCq),
		MaxCQE:              int(a.MaxCqe),
		MaxMR:               int(a.MaxMr),
		MaxPD:               int(a.MaxPd),
		MaxQPReadAtomic:     int(a.MaxQpRdAtom),
		MaxQPInitReadAtomic: int(a.MaxQpInitRdAtom),
		AtomicCap:           a.AtomicCap,
		MaxMW:               int(a.MaxMw),
		MaxMcastGroups:      int(a.MaxMcastGrp),
		MaxAH:               int(a.MaxAh),
		MaxSRQ:              int(a.MaxSrq),
		MaxSRQWR:            int(a.MaxSrqWr),
		MaxSRQSGE:           int(a.MaxSrqSge),
		MaxPKeys:            int(a.MaxPkeys),
		PhysicalPorts:       int(a.PhysPortCnt),
	}, nil
}

// PortAttr is the state of a port.
type PortAttr struct {
	State          PortState
	MaxMTU         MTU
	ActiveMTU      MTU
	GIDTableLen    int
	PKeyTableLen   int
	MaxMessageSize uint32 // bytes
	LID            uint16 // 0 on Ethernet
	SMLID          uint16 // of the subnet manager
	LMC            uint8
	LinkLayer      LinkLayer
	ActiveWidth    uint8 // 1: 1X, 2: 4X, 4: 8X, 8: 12X, 16: 2X
	ActiveSpeed    uint32
	PhysicalState  uint8 // 5 is link up
	Capabilities   libibverbs.PortCapFlags
}

// QueryPort returns the state of a port, the first of which is 1; see
// ibv_query_port(3).
func (c *Context) QueryPort(port int) (PortAttr, error) {
	n, err := portNumber("ibv_query_port", port)
	if err != nil {
		return PortAttr{}, err
	}
	if err := c.self().Use(); err != nil {
		return PortAttr{}, err
	}
	defer c.object.Done()
	var a libibverbs.PortAttr
	if err := libibverbs.QueryPort(c.raw, n, &a); err != nil {
		return PortAttr{}, cerr.Wrap(portName(c, port), err)
	}
	speed := a.ActiveSpeedEx
	if speed == 0 { // an older library
		speed = uint32(a.ActiveSpeed)
	}
	return PortAttr{
		State:          a.State,
		MaxMTU:         MTU(a.MaxMtu),
		ActiveMTU:      MTU(a.ActiveMtu),
		GIDTableLen:    int(a.GidTblLen),
		PKeyTableLen:   int(a.PkeyTblLen),
		MaxMessageSize: a.MaxMsgSz,
		LID:            a.Lid,
		SMLID:          a.SmLid,
		LMC:            a.Lmc,
		LinkLayer:      LinkLayer(a.LinkLayer),
		ActiveWidth:    a.ActiveWidth,
		ActiveSpeed:    speed,
		PhysicalState:  a.PhysState,
		Capabilities:   libibverbs.PortCapFlags(a.PortCapFlags),
	}, nil
}

// QueryGID returns an entry of a port's GID table, which is zero if the entry
// is empty; see ibv_query_gid(3).
func (c *Context) QueryGID(port, index int) (GID, error) {
	n, err := portNumber("ibv_query_gid", port)
	if err != nil {
		return GID{}, err
	}
	if index < 0 || index > math.MaxInt32 {
		return GID{}, &cerr.Error{Op: "ibv_query_gid", Object: fmt.Sprintf("index %d", index), Errno: syscall.EINVAL}
	}
	if err := c.self().Use(); err != nil {
		return GID{}, err
	}
	defer c.object.Done()
	var g libibverbs.Gid
	if err := libibverbs.QueryGid(c.raw, n, int32(index), &g); err != nil {
		return GID{}, cerr.Wrap(portName(c, port), err)
	}
	return GID(*g.Raw()), nil
}
