package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// DeviceAttrEx is DeviceAttr with the capabilities that came later. What the
// device, its driver or the C library lacks is zero.
type DeviceAttrEx struct {
	DeviceAttr
	Ports                   int // PhysicalPorts, which stops at 255, without that limit
	CapabilitiesEx          DeviceCaps
	CompletionTimestampMask uint64 // bits of a completion's timestamp that count; 0: it has none
	CoreClock               uint64 // kHz, of the clock of timestamps and RawClock
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

// ODPCaps says what on-demand paging, AccessOnDemand, can be used for: which
// requests of each transport may use memory that is not resident.
type ODPCaps struct {
	General         libibverbs.OdpGeneralCaps
	RC, UC, UD, XRC libibverbs.OdpTransportCapBits
}

// TSOCaps is about cutting large sends into TCP segments.
type TSOCaps struct {
	MaxPayload uint32 // bytes; 0: the device cannot
	QPTypes    QPTypes
}

// RSSCaps is about spreading what comes in over several receive queues.
type RSSCaps struct {
	QPTypes                 QPTypes
	MaxIndirectionTables    int
	MaxIndirectionTableSize int
	HashFields              libibverbs.RxHashFields
	HashFunctions           libibverbs.RxHashFunctionFlags
}

// PacketPacingCaps is about limiting the rate at which a queue pair sends.
type PacketPacingCaps struct {
	MinRate, MaxRate uint32 // kbit/s; 0: the device cannot
	QPTypes          QPTypes
}

// TagMatchingCaps is about matching messages with receives in the device.
type TagMatchingCaps struct {
	MaxRendezvousHeader uint32 // bytes
	MaxTags             int    // 0: the device cannot
	Flags               libibverbs.TmCapFlags
	MaxOps              int // changes of the list under way
	MaxSGE              int
}

// CQModerationCaps is about fewer completion events than completions.
type CQModerationCaps struct {
	MaxCount  uint16 // completions
	MaxPeriod uint16 // microseconds
}

// PCIAtomicCaps is which sizes of atomic operations the device can do on
// memory of other PCI devices.
type PCIAtomicCaps struct {
	FetchAdd, Swap, CompareSwap libibverbs.PciAtomicOpSize
}

// QueryDeviceEx returns what the device can do, with the extended
// capabilities; see ibv_query_device_ex(3).
func (d *Device) QueryDeviceEx() (DeviceAttrEx, error) {
	if err := d.self().Use(); err != nil {
		return DeviceAttrEx{}, err
	}
	defer d.object.Done()
	var a libibverbs.DeviceAttrEx
	if err := libibverbs.QueryDeviceEx(d.raw, nil, &a); err != nil {
		return DeviceAttrEx{}, wrap(d.Name(), err)
	}
	return deviceAttrEx(&a), nil
}

func deviceAttrEx(a *libibverbs.DeviceAttrEx) DeviceAttrEx {
	odp := a.OdpCaps.PerTransportCaps
	return DeviceAttrEx{
		DeviceAttr:              deviceAttr(&a.OrigAttr),
		Ports:                   max(int(a.PhysPortCntEx), int(a.OrigAttr.PhysPortCnt)), // the first is 0 from older libraries
		CapabilitiesEx:          DeviceCaps(a.DeviceCapFlagsEx),
		CompletionTimestampMask: a.CompletionTimestampMask,
		CoreClock:               a.HcaCoreClock,
		MaxWQ:                   int(a.MaxWqTypeRq),
		MaxDeviceMemory:         a.MaxDmSize,
		RawPacket:               libibverbs.RawPacketCaps(a.RawPacketCaps),
		ODP: ODPCaps{
			General: libibverbs.OdpGeneralCaps(a.OdpCaps.GeneralCaps),
			RC:      libibverbs.OdpTransportCapBits(odp.RcOdpCaps),
			UC:      libibverbs.OdpTransportCapBits(odp.UcOdpCaps),
			UD:      libibverbs.OdpTransportCapBits(odp.UdOdpCaps),
			XRC:     libibverbs.OdpTransportCapBits(a.XrcOdpCaps),
		},
		TSO: TSOCaps{MaxPayload: a.TsoCaps.MaxTso, QPTypes: QPTypes(a.TsoCaps.SupportedQpts)},
		RSS: RSSCaps{
			QPTypes:                 QPTypes(a.RssCaps.SupportedQpts),
			MaxIndirectionTables:    int(a.RssCaps.MaxRwqIndirectionTables),
			MaxIndirectionTableSize: int(a.RssCaps.MaxRwqIndirectionTableSize),
			HashFields:              libibverbs.RxHashFields(a.RssCaps.RxHashFieldsMask),
			HashFunctions:           libibverbs.RxHashFunctionFlags(a.RssCaps.RxHashFunction),
		},
		PacketPacing: PacketPacingCaps{
			MinRate: a.PacketPacingCaps.QpRateLimitMin,
			MaxRate: a.PacketPacingCaps.QpRateLimitMax,
			QPTypes: QPTypes(a.PacketPacingCaps.SupportedQpts),
		},
		TagMatching: TagMatchingCaps{
			MaxRendezvousHeader: a.TmCaps.MaxRndvHdrSize,
			MaxTags:             int(a.TmCaps.MaxNumTags),
			Flags:               libibverbs.TmCapFlags(a.TmCaps.Flags),
			MaxOps:              int(a.TmCaps.MaxOps),
			MaxSGE:              int(a.TmCaps.MaxSge),
		},
		CQModeration: CQModerationCaps{MaxCount: a.CqModCaps.MaxCqCount, MaxPeriod: a.CqModCaps.MaxCqPeriod},
		PCIAtomic: PCIAtomicCaps{
			FetchAdd:    libibverbs.PciAtomicOpSize(a.PciAtomicCaps.FetchAdd),
			Swap:        libibverbs.PciAtomicOpSize(a.PciAtomicCaps.Swap),
			CompareSwap: libibverbs.PciAtomicOpSize(a.PciAtomicCaps.CompareSwap),
		},
	}
}
