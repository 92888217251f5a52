// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// QPCreateFlags are options of a new queue pair; combine them with |.
type QPCreateFlags = libibverbs.QpCreateFlags

// The options of a new queue pair. Devices support few of them.
const (
	QPCreateBlockSelfMulticast QPCreateFlags = libibverbs.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB   // the QP does not receive its own datagrams to a group
	QPCreateScatterFCS         QPCreateFlags = libibverbs.IBV_QP_CREATE_SCATTER_FCS           // received frames keep their frame check sequence
	QPCreateCVLANStripping     QPCreateFlags = libibverbs.IBV_QP_CREATE_CVLAN_STRIPPING       // received frames lose their VLAN tag
	QPCreateSourceQPNum        QPCreateFlags = libibverbs.IBV_QP_CREATE_SOURCE_QPN            // packets carry QPConfig.SourceQPNum
	QPCreatePCIWriteEndPadding QPCreateFlags = libibverbs.IBV_QP_CREATE_PCI_WRITE_END_PADDING // writes to memory fill whole cache lines
)

// SendOpsFlags select the requests that a queue pair can post through the
// ibv_wr functions; combine them with |. Package libibverbs has the values,
// such as IBV_QP_EX_WITH_RDMA_WRITE.
type SendOpsFlags = libibverbs.QpCreateSendOpsFlags

// QPConfig is the configuration of a queue pair.
type QPConfig struct {
	Type         QPType // 0 means QPTypeRC
	SendCQ       *CQ    // completion queue for send requests; nil for QPTypeXRCRecv
	RecvCQ       *CQ    // completion queue for receives; nil for QPTypeXRCRecv; may be nil for QPTypeXRCSend
	SendQueue    int    // maximum number of send requests in progress
	RecvQueue    int    // maximum number of posted receives; unused with an SRQ
	SendSegments int    // maximum number of segments in a send request; 0 means 1
	RecvSegments int    // maximum number of segments in a receive; 0 means 1; unused with an SRQ
	MaxInline    int    // maximum number of bytes that a request sends inline
	SignalAll    bool   // whether every send request completes as if it had SendSignaled

	SRQ  *SRQ  // shared queue to take receives from; nil means a queue of its own
	XRCD *XRCD // required for QPTypeXRCRecv, nil for other types

	// This field and those below need extended creation, which not every device
	// has; see ibv_create_qp_ex(3).
	CreateFlags  QPCreateFlags
	SourceQPNum  uint32       // source number that packets carry, with QPCreateSourceQPNum
	MaxTSOHeader int          // maximum number of bytes in the header for SendBatch.TSO; 0 means no TSO
	SendOps      SendOpsFlags // requests that are posted with ibv_wr functions; 0 means that requests are posted only with ibv_post_send
}

// typeDriver is the type of queue pairs that the library of a driver makes.
const typeDriver = libibverbs.IBV_QPT_DRIVER

// notDriver returns an error if the config has the type of drivers.
func (c QPConfig) notDriver(pd *PD) error {
	if c.Type != typeDriver || pd.self() == nil {
		return nil
	}
	return cerr.Refuse(opCreateQP, pd.object.Name(), "Type is %v; queue pairs of drivers' own types are made by packages efa and mlx5", c.Type)
}

// qpType returns the type, or the default if it is 0.
func (c QPConfig) qpType() QPType {
	if c.Type == 0 {
		return QPTypeRC
	}
	return c.Type
}

// initAttr returns the config in C's form, without the fields that need
// extended creation. It fails if a queue is missing or a number is out of
// range.
func (c QPConfig) initAttr() (libibverbs.QpInitAttr, error) {
	var a libibverbs.QpInitAttr
	if err := c.check(); err != nil {
		return a, err
	}
	a.QpType = c.qpType()
	if a.QpType == QPTypeXRCRecv {
		return a, nil
	}
	a.SendCq = c.SendCQ.raw
	a.Cap = libibverbs.QpCap{
		MaxSendWr: uint32(c.SendQueue), MaxSendSge: uint32(max(c.SendSegments, 1)), MaxInlineData: uint32(c.MaxInline),
	}
	if c.RecvCQ != nil {
		a.RecvCq = c.RecvCQ.raw
	}
	switch {
	case c.SRQ != nil:
		a.Srq = c.SRQ.raw
	case a.QpType != QPTypeXRCSend:
		a.Cap.MaxRecvWr, a.Cap.MaxRecvSge = uint32(c.RecvQueue), uint32(max(c.RecvSegments, 1))
	}
	if c.SignalAll {
		a.SqSigAll = 1
	}
	return a, nil
}

func (c QPConfig) check() error {
	switch t := c.qpType(); t {
	case QPTypeXRCRecv:
		if c.XRCD == nil || c.SendCQ != nil || c.RecvCQ != nil || c.SRQ != nil || c.SendOps != 0 {
			return cerr.Invalid("QPTypeXRCRecv needs XRCD, and no SendCQ, RecvCQ, SRQ or SendOps")
		}
	case QPTypeXRCSend:
		if c.SendCQ == nil {
			return cerr.Invalid("QPTypeXRCSend needs SendCQ")
		}
		if c.SRQ != nil {
			return cerr.Invalid("QPTypeXRCSend takes no SRQ")
		}
	case QPTypeRC, QPTypeUC, QPTypeUD, QPTypeRawPacket, typeDriver:
		if c.SendCQ == nil || c.RecvCQ == nil {
			return cerr.Invalid("SendCQ or RecvCQ is nil")
		}
	default:
		return cerr.Invalid("Type is %v, which package ibverbs does not make", t)
	}
	if c.XRCD != nil && c.qpType() != QPTypeXRCRecv {
		return cerr.Invalid("Type is %v, and XRCD is for QPTypeXRCRecv alone", c.qpType())
	}
	if c.SourceQPNum != 0 && c.CreateFlags&QPCreateSourceQPNum == 0 {
		return cerr.Invalid("SourceQPNum is %d, and CreateFlags lacks QPCreateSourceQPNum", c.SourceQPNum)
	}
	return firstError(
		inRange("SendQueue", c.SendQueue, 0, math.MaxInt32),
		inRange("RecvQueue", c.RecvQueue, 0, math.MaxInt32),
		inRange("SendSegments", c.SendSegments, 0, math.MaxInt32),
		inRange("RecvSegments", c.RecvSegments, 0, math.MaxInt32),
		inRange("MaxInline", c.MaxInline, 0, math.MaxInt32),
		inRange("MaxTSOHeader", c.MaxTSOHeader, 0, math.MaxUint16),
		inRange("SourceQPNum", c.SourceQPNum, 0, maxQPN),
	)
}

func (c QPConfig) sizes(a DeviceAttr) []size {
	return []size{
		{"SendQueue", c.SendQueue, a.MaxQPWR},
		{"RecvQueue", c.RecvQueue, a.MaxQPWR},
		{"SendSegments", c.SendSegments, a.MaxSGE},
		{"RecvSegments", c.RecvSegments, a.MaxSGE},
		{"MaxInline", c.MaxInline, untold},
	}
}

// initAttrEx returns the whole config in C's form.
func (c QPConfig) initAttrEx(pd *PD) (libibverbs.QpInitAttrEx, error) {
	basic, err := c.initAttr()
	if err != nil {
		return libibverbs.QpInitAttrEx{}, err
	}
	a := libibverbs.QpInitAttrEx{
		SendCq: basic.SendCq, RecvCq: basic.RecvCq, Srq: basic.Srq, Cap: basic.Cap,
		QpType: basic.QpType, SqSigAll: basic.SqSigAll,
	}
	mask := libibverbs.IBV_QP_INIT_ATTR_PD
	if c.XRCD != nil { // a queue pair with an XRC domain has no protection domain
		mask = libibverbs.IBV_QP_INIT_ATTR_XRCD
		a.Xrcd = c.XRCD.raw
	} else {
		a.Pd = pd.raw
	}
	if c.CreateFlags != 0 {
		mask |= libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS
		a.CreateFlags, a.SourceQpn = c.CreateFlags, c.SourceQPNum
	}
	if c.MaxTSOHeader != 0 {
		mask |= libibverbs.IBV_QP_INIT_ATTR_MAX_TSO_HEADER
		a.MaxTsoHeader = uint16(c.MaxTSOHeader)
	}
	if c.SendOps != 0 {
		mask |= libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
		a.SendOpsFlags = uint64(c.SendOps)
	}
	a.CompMask = mask
	return a, nil
}

// parents returns the objects in the config that are not nil, and the open
// device of each.
func (c QPConfig) parents() (objects []*object.Object, contexts []*Device) {
	for _, cq := range []*CQ{c.SendCQ, c.RecvCQ} {
		if cq != nil {
			objects, contexts = append(objects, cq.self()), append(contexts, cq.device)
		}
	}
	if c.SRQ != nil {
		objects, contexts = append(objects, c.SRQ.self()), append(contexts, c.SRQ.device)
	}
	if c.XRCD != nil {
		objects, contexts = append(objects, c.XRCD.self()), append(contexts, c.XRCD.device)
	}
	return objects, contexts
}

// QPCap says how much a queue pair can hold.
type QPCap struct {
	SendQueue, RecvQueue       int // numbers of requests
	SendSegments, RecvSegments int // numbers of segments in a request
	MaxInline                  int // number of inline bytes in a request
}

func qpCapOf(c libibverbs.QpCap) QPCap {
	return QPCap{
		SendQueue: int(c.MaxSendWr), RecvQueue: int(c.MaxRecvWr),
		SendSegments: int(c.MaxSendSge), RecvSegments: int(c.MaxRecvSge), MaxInline: int(c.MaxInlineData),
	}
}
