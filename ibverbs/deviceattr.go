// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/caps"
)

// DeviceAttr describes what a device can do. Counts are upper limits. Fields
// that the device, its driver or the C library does not know are zero. The
// values of fields with a type of package libibverbs have names in that
// package.
type DeviceAttr struct {
	FirmwareVersion       string
	NodeGUID              GUID
	SystemImageGUID       GUID
	MaxMRSize             uint64 // bytes
	PageSizeCap           uint64 // bit n: memory pages of 1<<n bytes
	VendorID              uint32
	VendorPartID          uint32
	HardwareVersion       uint32
	MaxQP                 int
	MaxQPWR               int // requests in one send or receive queue
	Capabilities          caps.Flags
	MaxSGE                int // segments in one request
	MaxSGERead            int // segments in one RDMA read
	MaxCQ                 int
	MaxCQE                int // entries in one completion queue
	MaxMR                 int
	MaxPD                 int
	MaxQPReadAtomic       int                  // RDMA reads and atomics that one QP can answer at a time
	MaxResReadAtomic      int                  // RDMA reads and atomics that all QPs can answer at a time
	MaxQPInitReadAtomic   int                  // RDMA reads and atomics that one QP can have outstanding
	AtomicCap             libibverbs.AtomicCap // what atomic operations are atomic with: nothing, this device, or also CPUs and other devices
	MaxMW                 int
	MaxMcastGroups        int
	MaxMcastQPAttach      int // queue pairs in one multicast group
	MaxTotalMcastQPAttach int // queue pairs in all multicast groups
	MaxAH                 int
	MaxSRQ                int
	MaxSRQWR              int   // receives in one shared receive queue
	MaxSRQSGE             int   // segments in one receive of a shared receive queue
	MaxPKeys              int   // entries in a port's P_Key table
	LocalAckDelay         uint8 // n: the device acknowledges a message within 4.096 us * 2^n
	Ports                 int

	CompletionTimestampMask uint64 // valid bits of a completion's timestamp; 0 means no timestamps
	CoreClock               uint64 // kHz, the rate of timestamps and RawClock
	MaxWQ                   int    // receive work queues
	MaxDeviceMemory         uint64 // bytes
	RawPacket               libibverbs.RawPacketCaps
	ODP                     caps.ODP
	TSO                     caps.TSO
	RSS                     caps.RSS
	PacketPacing            caps.PacketPacing
	TagMatching             caps.TagMatching
	CQModeration            caps.CQModeration
	PCIAtomic               caps.PCIAtomic
}

// QueryDevice returns what the device can do; see ibv_query_device_ex(3).
func (d *Device) QueryDevice() (DeviceAttr, error) {
	if err := d.self().Use(); err != nil {
		return DeviceAttr{}, err
	}
	defer d.object.Done()
	var a libibverbs.DeviceAttrEx
	if err := libibverbs.QueryDeviceEx(d.raw, nil, &a); err != nil {
		return DeviceAttr{}, wrap(d.Name(), err)
	}
	return deviceAttr(&a), nil
}

func deviceAttr(extended *libibverbs.DeviceAttrEx) DeviceAttr {
	a, odp := &extended.OrigAttr, extended.OdpCaps.PerTransportCaps
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
		Capabilities:          caps.Flags(extended.DeviceCapFlagsEx) | caps.Flags(a.DeviceCapFlags), // older libraries set only the second
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
		Ports:                 max(int(extended.PhysPortCntEx), int(a.PhysPortCnt)), // the second ends at 255; older libraries set only it

		CompletionTimestampMask: extended.CompletionTimestampMask,
		CoreClock:               extended.HcaCoreClock,
		MaxWQ:                   int(extended.MaxWqTypeRq),
		MaxDeviceMemory:         extended.MaxDmSize,
		RawPacket:               extended.RawPacketCaps,
		ODP: caps.ODP{
			General: libibverbs.OdpGeneralCaps(extended.OdpCaps.GeneralCaps),
			RC:      odp.RcOdpCaps,
			UC:      odp.UcOdpCaps,
			UD:      odp.UdOdpCaps,
			XRC:     extended.XrcOdpCaps,
		},
		TSO: caps.TSO{MaxPayload: extended.TsoCaps.MaxTso, QPTypes: caps.QPTypes(extended.TsoCaps.SupportedQpts)},
		RSS: caps.RSS{
			QPTypes:                 caps.QPTypes(extended.RssCaps.SupportedQpts),
			MaxIndirectionTables:    int(extended.RssCaps.MaxRwqIndirectionTables),
			MaxIndirectionTableSize: int(extended.RssCaps.MaxRwqIndirectionTableSize),
			HashFields:              libibverbs.RxHashFields(extended.RssCaps.RxHashFieldsMask),
			HashFunctions:           libibverbs.RxHashFunctionFlags(extended.RssCaps.RxHashFunction),
		},
		PacketPacing: caps.PacketPacing{
			MinRate: extended.PacketPacingCaps.QpRateLimitMin,
			MaxRate: extended.PacketPacingCaps.QpRateLimitMax,
			QPTypes: caps.QPTypes(extended.PacketPacingCaps.SupportedQpts),
		},
		TagMatching: caps.TagMatching{
			MaxRendezvousHeader: extended.TmCaps.MaxRndvHdrSize,
			MaxTags:             int(extended.TmCaps.MaxNumTags),
			Flags:               extended.TmCaps.Flags,
			MaxOps:              int(extended.TmCaps.MaxOps),
			MaxSGE:              int(extended.TmCaps.MaxSge),
		},
		CQModeration: caps.CQModeration{MaxCount: extended.CqModCaps.MaxCqCount, MaxPeriod: extended.CqModCaps.MaxCqPeriod},
		PCIAtomic: caps.PCIAtomic{
			FetchAdd:    libibverbs.PciAtomicOpSize(extended.PciAtomicCaps.FetchAdd),
			Swap:        libibverbs.PciAtomicOpSize(extended.PciAtomicCaps.Swap),
			CompareSwap: libibverbs.PciAtomicOpSize(extended.PciAtomicCaps.CompareSwap),
		},
	}
}

// size is a number that a config asks for, with the device's limit.
type size struct {
	name     string
	n, limit int
}

const untold = -1 // limit of a size for which devices report none

// tooMuch adds the object's name to err, the error of creating the object. If C
// refused the object's sizes, tooMuch also adds the sizes that are above the
// device's limits, because C returns only an errno.
func (d *Device) tooMuch(err error, object string, sizes func(DeviceAttr) []size) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) {
		if attr, e := d.QueryDevice(); e == nil {
			object += above(sizes(attr))
		}
	}
	return wrap(object, err)
}

// above describes the sizes that are above their limits. If no size is, it
// describes the sizes whose limits are unknown.
func above(sizes []size) string {
	var text, maybe string
	for _, s := range sizes {
		switch {
		case s.limit == untold && s.n > 0:
			maybe += fmt.Sprintf(", %s %d may be above the device's limit, which is not known", s.name, s.n)
		case s.limit != untold && s.n > s.limit:
			text += fmt.Sprintf(", %s %d is above the device's limit of %d", s.name, s.n, s.limit)
		}
	}
	return cmp.Or(text, maybe)
}
