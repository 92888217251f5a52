// SPDX-License-Identifier: Apache-2.0

package caps

import "github.com/verbena-go/verbena/generated/libibverbs"

// ODP describes on-demand paging (ibverbs.AccessOnDemand): which requests of
// each transport may use memory that is not resident.
type ODP struct {
	General         libibverbs.OdpGeneralCaps
	RC, UC, UD, XRC libibverbs.OdpTransportCapBits
}

// TSO describes TCP segmentation offload: cutting large sends into TCP
// segments.
type TSO struct {
	MaxPayload uint32 // maximum number of bytes in one send; 0 means that TSO is not supported
	QPTypes    QPTypes
}

// RSS describes receive-side scaling: spreading packets over several receive
// queues.
type RSS struct {
	QPTypes                 QPTypes
	MaxIndirectionTables    int
	MaxIndirectionTableSize int
	HashFields              libibverbs.RxHashFields        // see flow.RSSFields
	HashFunctions           libibverbs.RxHashFunctionFlags // see flow.RSSFunction
}

// PacketPacing describes limits on the rate at which a queue pair sends.
type PacketPacing struct {
	MinRate, MaxRate uint32 // limits of the rate in kbit/s; 0 means that pacing is not supported
	QPTypes          QPTypes
}

// TagMatching describes how the device matches messages with receives.
type TagMatching struct {
	MaxRendezvousHeader uint32 // maximum number of bytes in a rendezvous header
	MaxTags             int    // maximum number of receives in the tag list; 0 means that tag matching is not supported
	Flags               libibverbs.TmCapFlags
	MaxOps              int // maximum number of outstanding changes of the tag list
	MaxSGE              int // maximum number of segments in a receive of the tag list
}

// CQModeration describes how far ibverbs.CQ.Moderate can delay completion
// events.
type CQModeration struct {
	MaxCount  uint16 // maximum number of completions
	MaxPeriod uint16 // maximum period in microseconds
}

// PCIAtomic describes which sizes of atomic operations the device can do on the
// memory of other PCI devices.
type PCIAtomic struct {
	FetchAdd, Swap, CompareSwap libibverbs.PciAtomicOpSize
}
