package ibverbs

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// DeviceAttr is what a device can do. Counts are upper limits.
type DeviceAttr struct {
	FirmwareVersion       string
	NodeGUID              GUID
	SystemImageGUID       GUID
	MaxMRSize             uint64 // bytes
	PageSizeCap           uint64 // bit n set: memory pages of 1<<n bytes
	VendorID              uint32
	VendorPartID          uint32
	HardwareVersion       uint32
	MaxQP                 int
	MaxQPWR               int // requests in one queue
	Capabilities          libibverbs.DeviceCapFlags
	MaxSGE                int // segments of one request
	MaxSGERead            int // segments of one RDMA read
	MaxCQ                 int
	MaxCQE                int // entries of one completion queue
	MaxMR                 int
	MaxPD                 int
	MaxQPReadAtomic       int                  // RDMA reads and atomics that one QP can answer at a time
	MaxResReadAtomic      int                  // and all of them together
	MaxQPInitReadAtomic   int                  // and that it can have under way
	AtomicCap             libibverbs.AtomicCap // whom atomics are atomic for: this device's, or processors and other devices too
	MaxMW                 int
	MaxMcastGroups        int
	MaxMcastQPAttach      int // queue pairs in one multicast group
	MaxTotalMcastQPAttach int // and in all of them
	MaxAH                 int
	MaxSRQ                int
	MaxSRQWR              int   // receives in one shared receive queue
	MaxSRQSGE             int   // segments of one of them
	MaxPKeys              int   // in a port's table
	LocalAckDelay         uint8 // 4.096 us * 2^n is the longest until the device acknowledges a message
	PhysicalPorts         int
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
	return deviceAttr(&a), nil
}

func deviceAttr(a *libibverbs.DeviceAttr) DeviceAttr {
	return DeviceAttr{
		FirmwareVersion:       cString(a.FwVer[:]),
		NodeGUID:              GUID(a.NodeGuid.Host()),
		SystemImageGUID:       GUID(a.SysImageGuid.Host()),
		MaxMRSize:             a.MaxMrSize,
		PageSizeCap:           a.PageSizeCap,
		VendorID:              a.VendorId,
		VendorPartID:          a.VendorPartId,
		HardwareVersion:       a.HwVer,
		MaxQP:                 int(a.MaxQp),
		MaxQPWR:               int(a.MaxQpWr),
		Capabilities:          libibverbs.DeviceCapFlags(a.DeviceCapFlags),
		MaxSGE:                int(a.MaxSge),
		MaxSGERead:            int(a.MaxSgeRd),
		MaxCQ:                 int(a.MaxCq),
		MaxCQE:                int(a.MaxCqe),
		MaxMR:                 int(a.MaxMr),
		MaxPD:                 int(a.MaxPd),
		MaxQPReadAtomic:       int(a.MaxQpRdAtom),
		MaxResReadAtomic:      int(a.MaxResRdAtom),
		MaxQPInitReadAtomic:   int(a.MaxQpInitRdAtom),
		AtomicCap:             a.AtomicCap,
		MaxMW:                 int(a.MaxMw),
		MaxMcastGroups:        int(a.MaxMcastGrp),
		MaxMcastQPAttach:      int(a.MaxMcastQpAttach),
		MaxTotalMcastQPAttach: int(a.MaxTotalMcastQpAttach),
		MaxAH:                 int(a.MaxAh),
		MaxSRQ:                int(a.MaxSrq),
		MaxSRQWR:              int(a.MaxSrqWr),
		MaxSRQSGE:             int(a.MaxSrqSge),
		MaxPKeys:              int(a.MaxPkeys),
		LocalAckDelay:         a.LocalCaAckDelay,
		PhysicalPorts:         int(a.PhysPortCnt),
	}
}
