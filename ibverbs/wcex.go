package ibverbs

import (
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
)

// WCFields say what completions are to have.
type WCFields = libibverbs.CreateCqWcFlags

// What completions can have beside ID, status, opcode, flags and vendor error.
// What a queue was not made with is 0 in its completions.
const (
	WCWithByteLen      = libibverbs.IBV_WC_EX_WITH_BYTE_LEN
	WCWithImm          = libibverbs.IBV_WC_EX_WITH_IMM // and invalidated keys
	WCWithQPNum        = libibverbs.IBV_WC_EX_WITH_QP_NUM
	WCWithSrcQPNum     = libibverbs.IBV_WC_EX_WITH_SRC_QP
	WCWithSLID         = libibverbs.IBV_WC_EX_WITH_SLID
	WCWithSL           = libibverbs.IBV_WC_EX_WITH_SL
	WCWithDLIDPathBits = libibverbs.IBV_WC_EX_WITH_DLID_PATH_BITS
	WCWithTimestamp    = libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
	WCWithCVLAN        = libibverbs.IBV_WC_EX_WITH_CVLAN
	WCWithFlowTag      = libibverbs.IBV_WC_EX_WITH_FLOW_TAG
	WCWithTMInfo       = libibverbs.IBV_WC_EX_WITH_TM_INFO
	WCWithWallclock    = libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK

	// WCStandard is what [CQ.Poll] gives.
	WCStandard = WCWithByteLen | WCWithImm | WCWithQPNum | WCWithSrcQPNum | WCWithSLID | WCWithSL | WCWithDLIDPathBits
)

// WCEx is a completion of a queue that was made with CQConfig.Fields. It has
// all that WC has, but the index of a partition key. See ibv_create_cq_ex(3).
type WCEx struct {
	WC
	more wcMore
}

// wcMore is what datapath.WC has more than C's ibv_wc.
type wcMore struct {
	timestamp uint64
	wallclock uint64
	tag       uint64
	tagData   uint32
	flowTag   uint32
	cvlan     uint16
	_         [2]byte
	slid      uint32
}

// C fills both.
var (
	_ [unsafe.Sizeof(datapath.WC{})]byte           = [unsafe.Sizeof(WCEx{})]byte{}
	_ [unsafe.Offsetof(datapath.WC{}.CVLAN)]byte   = [unsafe.Offsetof(WCEx{}.more) + unsafe.Offsetof(wcMore{}.cvlan)]byte{}
	_ [unsafe.Offsetof(datapath.WC{}.SLID)]byte    = [unsafe.Offsetof(WCEx{}.more) + unsafe.Offsetof(wcMore{}.slid)]byte{}
	_ [unsafe.Offsetof(datapath.WC{}.TagData)]byte = [unsafe.Offsetof(WCEx{}.more) + unsafe.Offsetof(wcMore{}.tagData)]byte{}
)

// Timestamp is when the request completed, in ticks of the device's clock, whose
// speed the device's attributes have; see DeviceAttrEx.ClockDuration. It needs
// WCWithTimestamp.
func (wc *WCEx) Timestamp() uint64 { return wc.more.timestamp }

// Time is when the request completed. It needs WCWithWallclock.
func (wc *WCEx) Time() time.Time { return time.Unix(0, int64(wc.more.wallclock)) }

// CVLAN is the VLAN tag of a received packet. It needs WCWithCVLAN.
func (wc *WCEx) CVLAN() uint16 { return wc.more.cvlan }

// FlowTag is the tag of the flow that a received packet is of. It needs
// WCWithFlowTag.
func (wc *WCEx) FlowTag() uint32 { return wc.more.flowTag }

// SLID is the local identifier of a datagram's sender, with all 32 bits that
// devices with longer ones than InfiniBand's have. It needs WCWithSLID.
func (wc *WCEx) SLID() uint32 { return wc.more.slid }

// TMInfo is the tag of a received message, and the data that its sender put
// beside it, TagHeader.Context. It needs WCWithTMInfo.
func (wc *WCEx) TMInfo() (tag uint64, data uint32) { return wc.more.tag, wc.more.tagData }
