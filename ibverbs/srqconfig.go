package ibverbs

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// SRQType is what a shared receive queue serves.
type SRQType = libibverbs.SrqType

// The types of shared receive queues.
const (
	SRQTypeBasic       SRQType = libibverbs.IBV_SRQT_BASIC // queue pairs that are made with it
	SRQTypeXRC         SRQType = libibverbs.IBV_SRQT_XRC   // extended reliable connections that name it
	SRQTypeTagMatching SRQType = libibverbs.IBV_SRQT_TM    // messages that find their receive by a tag
)

// SRQConfig says how to make a shared receive queue.
type SRQConfig struct {
	Type   SRQType // the zero value is SRQTypeBasic
	MaxWR  int     // receives posted
	MaxSGE int     // segments of a receive; the zero value is 1

	XRCD *XRCD // for SRQTypeXRC
	CQ   *CQ   // for SRQTypeXRC and SRQTypeTagMatching

	// For SRQTypeTagMatching: tags in the list, and operations on it under way.
	MaxTags, MaxTagOps int
}

func (c SRQConfig) check(pd *PD) error {
	const op = "ibv_create_srq"
	bad := func(format string, args ...any) error { return cerr.Refuse(op, pd.object.Name(), format, args...) }
	err := firstError(
		inRange("MaxWR", c.MaxWR, 1, math.MaxInt32),
		inRange("MaxSGE", c.MaxSGE, 0, math.MaxInt32),
		inRange("MaxTags", c.MaxTags, 0, math.MaxInt32),
		inRange("MaxTagOps", c.MaxTagOps, 0, math.MaxInt32),
	)
	if err != nil {
		return cerr.Argument(op, pd.object.Name(), err)
	}
	tm := c.Type == SRQTypeTagMatching
	switch {
	case c.Type > SRQTypeTagMatching:
		return bad("Type is %v", c.Type)
	case (c.XRCD != nil) != (c.Type == SRQTypeXRC):
		return bad("XRCD is needed for SRQTypeXRC, and for no other type")
	case (c.CQ != nil) != (c.Type != SRQTypeBasic):
		return bad("CQ is needed for all types but SRQTypeBasic, which has none")
	case (c.MaxTags != 0 || c.MaxTagOps != 0) && !tm, tm && (c.MaxTags == 0 || c.MaxTagOps == 0):
		return bad("MaxTags and MaxTagOps are needed for SRQTypeTagMatching, and for no other type")
	}
	return nil
}

// parents returns the objects that the queue needs besides its domain, and the
// open devices that they belong to.
func (c SRQConfig) parents() (objects []*object.Object, contexts []*Device) {
	if c.XRCD != nil {
		objects, contexts = append(objects, c.XRCD.self()), append(contexts, c.XRCD.device)
	}
	if c.CQ != nil {
		objects, contexts = append(objects, c.CQ.self()), append(contexts, c.CQ.device)
	}
	return objects, contexts
}

func (c SRQConfig) sizes(a DeviceAttr) []size {
	return []size{{"MaxWR", c.MaxWR, a.MaxSRQWR}, {"MaxSGE", c.MaxSGE, a.MaxSRQSGE}}
}

func (c SRQConfig) create(pd *PD) (*libibverbs.Srq, error) {
	size := libibverbs.SrqAttr{MaxWr: uint32(c.MaxWR), MaxSge: uint32(max(c.MaxSGE, 1))}
	if c.Type == SRQTypeBasic {
		return libibverbs.CreateSrq(pd.raw, &libibverbs.SrqInitAttr{Attr: size})
	}
	attr := libibverbs.SrqInitAttrEx{
		Attr: size, SrqType: c.Type, Pd: pd.raw, Cq: c.CQ.raw,
		CompMask: uint32(libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD | libibverbs.IBV_SRQ_INIT_ATTR_CQ),
	}
	if c.Type == SRQTypeXRC {
		attr.CompMask |= uint32(libibverbs.IBV_SRQ_INIT_ATTR_XRCD)
		attr.Xrcd = c.XRCD.raw
	} else {
		attr.CompMask |= uint32(libibverbs.IBV_SRQ_INIT_ATTR_TM)
		attr.TmCap = libibverbs.TmCap{MaxNumTags: uint32(c.MaxTags), MaxOps: uint32(c.MaxTagOps)}
	}
	return libibverbs.CreateSrqEx(pd.device.raw, &attr)
}
