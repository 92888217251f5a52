package ibverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// AHAttr is a path to a port, or to a multicast group.
type AHAttr struct {
	Port        int             // of this device, from 1
	DLID        uint16          // the destination's local identifier; 0 on RoCE
	SL          uint8           // service level, up to 15
	SrcPathBits uint8           // which of the port's local identifiers to use, up to 127
	StaticRate  libibverbs.Rate // at most so fast; 0: as fast as the port

	// The global route. It is used if DGID is not zero, as it must be on RoCE.

	DGID         GID    // the destination
	SGIDIndex    int    // of the source, in the port's GID table
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8  // 0 or 1: not through routers; on RoCE v2 the kernel chooses
	TrafficClass uint8  // on RoCE v2, the IP header's: DSCP in the upper 6 bits
}

const (
	maxQPN       = 1<<24 - 1
	maxPSN       = 1<<24 - 1
	maxFlowLabel = 1<<20 - 1
)

// inRange names what is wrong with a number.
func inRange[T int | uint8 | uint32](name string, v, low, high T) error {
	if v < low || v > high {
		return cerr.Invalid("%s is %d, not from %d to %d", name, v, low, high)
	}
	return nil
}

// firstError returns the first one that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (a AHAttr) raw() (libibverbs.AhAttr, error) {
	err := firstError(
		inRange("port", a.Port, 1, 255),
		inRange("service level", a.SL, 0, 15),
		inRange("source path bits", a.SrcPathBits, 0, 127),
		inRange("static rate", uint32(a.StaticRate), 0, 255),
		inRange("GID index", a.SGIDIndex, 0, 255),
		inRange("flow label", a.FlowLabel, 0, maxFlowLabel),
	)
	if err != nil {
		return libibverbs.AhAttr{}, cerr.Invalid("path: %v", err)
	}
	raw := libibverbs.AhAttr{
		Dlid: a.DLID, Sl: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: uint8(a.StaticRate), PortNum: uint8(a.Port),
	}
	if !a.DGID.IsZero() {
		raw.IsGlobal = 1
		raw.Grh = libibverbs.GlobalRoute{
			SgidIndex: uint8(a.SGIDIndex), FlowLabel: a.FlowLabel, HopLimit: a.HopLimit, TrafficClass: a.TrafficClass,
		}
		*raw.Grh.Dgid.Raw() = a.DGID
	}
	return raw, nil
}

// towards adds to the name of an object the way that it was to get, if the
// error says that nobody answers there.
func towards(name string, a *libibverbs.AhAttr, err error) string {
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH} {
		if errors.Is(err, errno) && a.IsGlobal != 0 {
			return fmt.Sprintf("%s, from GID index %d of port %d to %s",
				name, a.Grh.SgidIndex, a.PortNum, GID(*a.Grh.Dgid.Raw()).Addr())
		}
	}
	return name
}

func ahAttrOf(raw *libibverbs.AhAttr) AHAttr {
	a := AHAttr{
		Port: int(raw.PortNum), DLID: raw.Dlid, SL: raw.Sl, SrcPathBits: raw.SrcPathBits,
		StaticRate: libibverbs.Rate(raw.StaticRate),
	}
	if raw.IsGlobal != 0 {
		g := &raw.Grh
		a.DGID, a.SGIDIndex, a.FlowLabel = GID(*g.Dgid.Raw()), int(g.SgidIndex), g.FlowLabel
		a.HopLimit, a.TrafficClass = g.HopLimit, g.TrafficClass
	}
	return a
}
