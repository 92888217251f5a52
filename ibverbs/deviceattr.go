package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
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
func (d *Device) QueryDevice() (DeviceAttr, error) {
	if err := d.self().Use(); err != nil {
		return DeviceAttr{}, err
	}
	defer d.object.Done()
	var a libibverbs.DeviceAttr
	if err := libibverbs.QueryDevice(d.raw, &a); err != nil {
		return DeviceAttr{}, wrap(d.Name(), err)
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

// size is what a config asks for, and the most that the device has of it.
type size struct {
	name     string
	n, limit int
}

const untold = -1 // the limit of a size that devices do not tell

// tooMuch names the object in the error of a call that was to make it, and the
// sizes that are above the device's limits. C has a bare errno for these.
func (d *Device) tooMuch(err error, object string, sizes func(DeviceAttr) []size) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) {
		if attr, e := d.QueryDevice(); e == nil {
			object += above(sizes(attr))
		}
	}
	return wrap(object, err)
}

// above names the sizes that are above their limits. If none is, it is those
// whose limits nobody knows that may be.
func above(sizes []size) string {
	var text, maybe string
	for _, s := range sizes {
		switch {
		case s.limit == untold && s.n > 0:
			maybe += fmt.Sprintf(", %s %d may be above the device's limit, which it does not tell", s.name, s.n)
		case s.limit != untold && s.n > s.limit:
			text += fmt.Sprintf(", %s %d is above the device's %d", s.name, s.n, s.limit)
		}
	}
	return cmp.Or(text, maybe)
}
