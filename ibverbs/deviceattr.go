package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// DeviceAttr describes what a device can do. Counts are upper limits. Fields
// that the device, its driver or the C library does not know are zero.
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
	Capabilities          DeviceCaps
	MaxSGE                int // segments in one request
	MaxSGERead            int // segments in one RDMA read
	MaxCQ                 int
	MaxCQE                int // entries in one completion queue
	MaxMR                 int
	MaxPD                 int
	MaxQPReadAtomic       int                  // RDMA reads and atomics that one QP can answer at a time
	MaxResReadAtomic      int                  // RDMA reads and atomics that all QPs can answer at a time
	MaxQPInitReadAtomic   int                  // RDMA reads and atomics that one QP can have outstanding
	AtomicCap             libibverbs.AtomicCap // none, atomic within this device, or also for CPUs and other devices
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

	CompletionTimestampMask uint64 // valid bits of a completion's timestamp; 0: no timestamps
	CoreClock               uint64 // kHz, the rate of timestamps and RawClock
	MaxWQ                   int    // receive work queues
	MaxDeviceMemory         uint64 // bytes
	RawPacket               libibverbs.RawPacketCaps
	ODP                     ODPCaps
	TSO                     TSOCaps
	RSS                     RSSCaps
	PacketPacing            PacketPacingCaps
	TagMatching             TagMatchingCaps
	CQModeration            CQModerationCaps
	PCIAtomic               PCIAtomicCaps
}

// ODPCaps describes on-demand paging (AccessOnDemand): which requests of each
// transport may use memory that is not resident.
type ODPCaps struct {
	General         libibverbs.OdpGeneralCaps
	RC, UC, UD, XRC libibverbs.OdpTransportCapBits
}

// TSOCaps describes TCP segmentation offload: cutting large sends into TCP
// segments.
type TSOCaps struct {
	MaxPayload uint32 // bytes; 0: not supported
	QPTypes    QPTypes
}

// RSSCaps describes receive-side scaling: spreading packets over several
// receive queues.
type RSSCaps struct {
	QPTypes                 QPTypes
	MaxIndirectionTables    int
	MaxIndirectionTableSize int
	HashFields              libibverbs.RxHashFields        // see flow.RSSFields
	HashFunctions           libibverbs.RxHashFunctionFlags // see flow.RSSFunction
}

// PacketPacingCaps describes limits on the rate at which a queue pair sends.
type PacketPacingCaps struct {
	MinRate, MaxRate uint32 // kbit/s; 0: not supported
	QPTypes          QPTypes
}

// TagMatchingCaps describes how the device matches messages with receives.
type TagMatchingCaps struct {
	MaxRendezvousHeader uint32 // bytes
	MaxTags             int    // 0: not supported
	Flags               libibverbs.TmCapFlags
	MaxOps              int // outstanding changes of the tag list
	MaxSGE              int
}

// CQModerationCaps describes how far CQ.Moderate can delay completion events.
type CQModerationCaps struct {
	MaxCount  uint16 // completions
	MaxPeriod uint16 // microseconds
}

// PCIAtomicCaps describes which sizes of atomic operations the device can do on
// the memory of other PCI devices.
type PCIAtomicCaps struct {
	FetchAdd, Swap, CompareSwap libibverbs.PciAtomicOpSize
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
		Capabilities:          DeviceCaps(extended.DeviceCapFlagsEx) | DeviceCaps(a.DeviceCapFlags), // older libraries set only the second
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
		RawPacket:               libibverbs.RawPacketCaps(extended.RawPacketCaps),
		ODP: ODPCaps{
			General: libibverbs.OdpGeneralCaps(extended.OdpCaps.GeneralCaps),
			RC:      libibverbs.OdpTransportCapBits(odp.RcOdpCaps),
			UC:      libibverbs.OdpTransportCapBits(odp.UcOdpCaps),
			UD:      libibverbs.OdpTransportCapBits(odp.UdOdpCaps),
			XRC:     libibverbs.OdpTransportCapBits(extended.XrcOdpCaps),
		},
		TSO: TSOCaps{MaxPayload: extended.TsoCaps.MaxTso, QPTypes: QPTypes(extended.TsoCaps.SupportedQpts)},
		RSS: RSSCaps{
			QPTypes:                 QPTypes(extended.RssCaps.SupportedQpts),
			MaxIndirectionTables:    int(extended.RssCaps.MaxRwqIndirectionTables),
			MaxIndirectionTableSize: int(extended.RssCaps.MaxRwqIndirectionTableSize),
			HashFields:              libibverbs.RxHashFields(extended.RssCaps.RxHashFieldsMask),
			HashFunctions:           libibverbs.RxHashFunctionFlags(extended.RssCaps.RxHashFunction),
		},
		PacketPacing: PacketPacingCaps{
			MinRate: extended.PacketPacingCaps.QpRateLimitMin,
			MaxRate: extended.PacketPacingCaps.QpRateLimitMax,
			QPTypes: QPTypes(extended.PacketPacingCaps.SupportedQpts),
		},
		TagMatching: TagMatchingCaps{
			MaxRendezvousHeader: extended.TmCaps.MaxRndvHdrSize,
			MaxTags:             int(extended.TmCaps.MaxNumTags),
			Flags:               libibverbs.TmCapFlags(extended.TmCaps.Flags),
			MaxOps:              int(extended.TmCaps.MaxOps),
			MaxSGE:              int(extended.TmCaps.MaxSge),
		},
		CQModeration: CQModerationCaps{MaxCount: extended.CqModCaps.MaxCqCount, MaxPeriod: extended.CqModCaps.MaxCqPeriod},
		PCIAtomic: PCIAtomicCaps{
			FetchAdd:    libibverbs.PciAtomicOpSize(extended.PciAtomicCaps.FetchAdd),
			Swap:        libibverbs.PciAtomicOpSize(extended.PciAtomicCaps.Swap),
			CompareSwap: libibverbs.PciAtomicOpSize(extended.PciAtomicCaps.CompareSwap),
		},
	}
}

// size is what a config asks for, and the device's limit.
type size struct {
	name     string
	n, limit int
}

const untold = -1 // the limit of a size for which devices report none

// tooMuch adds to an error of creating the object which sizes are above the
// device's limits. C returns only an errno for these.
func (d *Device) tooMuch(err error, object string, sizes func(DeviceAttr) []size) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) {
		if attr, e := d.QueryDevice(); e == nil {
			object += above(sizes(attr))
		}
	}
	return wrap(object, err)
}

// above names the sizes that are above their limits. If none is, it names those
// with unknown limits.
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

// DeviceCaps is a set of device capabilities. libibverbs.DeviceCapFlags defines
// those that have no name here.
type DeviceCaps uint64

// The capabilities of devices.
const (
	DeviceSRQResize          DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_SRQ_RESIZE)
	DeviceMemWindow          DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_WINDOW) // MWType1 memory windows
	DeviceMemWindow2A        DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2A)
	DeviceMemWindow2B        DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B)
	DeviceUDIPChecksum       DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_UD_IP_CSUM)
	DeviceRawIPChecksum      DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_RAW_IP_CSUM)
	DeviceXRC                DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_XRC)
	DeviceMemMgtExtensions   DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS) // requests that invalidate memory keys
	DeviceFlowSteering       DeviceCaps = DeviceCaps(libibverbs.IBV_DEVICE_MANAGED_FLOW_STEERING)
	DeviceRawScatterFCS      DeviceCaps = libibverbs.IBV_DEVICE_RAW_SCATTER_FCS
	DevicePCIWriteEndPadding DeviceCaps = libibverbs.IBV_DEVICE_PCI_WRITE_END_PADDING
	DeviceCCDMABounce        DeviceCaps = libibverbs.IBV_DEVICE_CC_DMA_BOUNCE // DMA goes through bounce buffers
)

var upperCaps = []struct {
	flag DeviceCaps
	name string
}{
	{DeviceRawScatterFCS, "IBV_DEVICE_RAW_SCATTER_FCS"},
	{DevicePCIWriteEndPadding, "IBV_DEVICE_PCI_WRITE_END_PADDING"},
	{DeviceCCDMABounce, "IBV_DEVICE_CC_DMA_BOUNCE"},
}

// String returns the names of the flags, joined with |.
func (d DeviceCaps) String() string {
	var parts []string
	upper := d >> 32 << 32
	for _, c := range upperCaps {
		if upper&c.flag != 0 {
			parts = append(parts, c.name)
			upper &^= c.flag
		}
	}
	if upper != 0 {
		parts = append(parts, fmt.Sprintf("%#x", uint64(upper)))
	}
	if lower := libibverbs.DeviceCapFlags(d); lower != 0 || len(parts) == 0 {
		parts = append([]string{lower.String()}, parts...)
	}
	return strings.Join(parts, "|")
}

// MarshalText returns the text of String.
func (d DeviceCaps) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses the output of String.
func (d *DeviceCaps) UnmarshalText(text []byte) error {
	var all DeviceCaps
	for part := range strings.SplitSeq(string(text), "|") {
		flag, err := parseDeviceCap(part)
		if err != nil {
			return err
		}
		all |= flag
	}
	*d = all
	return nil
}

func parseDeviceCap(s string) (DeviceCaps, error) {
	for _, c := range upperCaps {
		if c.name == s {
			return c.flag, nil
		}
	}
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return DeviceCaps(n), nil
	}
	lower, err := libibverbs.ParseDeviceCapFlags(s)
	return DeviceCaps(lower), err
}

// QPTypes is a set of queue pair types.
type QPTypes uint32

// Has reports whether the type is in the set.
func (q QPTypes) Has(t QPType) bool { return t < 32 && q&(1<<t) != 0 }

// String returns the names of the types, joined with |.
func (q QPTypes) String() string {
	if q == 0 {
		return "0"
	}
	var parts []string
	for rest := uint32(q); rest != 0; rest &= rest - 1 {
		parts = append(parts, QPType(bits.TrailingZeros32(rest)).String())
	}
	return strings.Join(parts, "|")
}

// MarshalText returns the text of String.
func (q QPTypes) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText parses the output of String.
func (q *QPTypes) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*q = 0
		return nil
	}
	var all QPTypes
	for part := range strings.SplitSeq(string(text), "|") {
		t, err := libibverbs.ParseQpType(part)
		if err != nil {
			return err
		}
		if t >= 32 {
			return fmt.Errorf("%s cannot be in a set of QP types", t)
		}
		all |= 1 << t
	}
	*q = all
	return nil
}
