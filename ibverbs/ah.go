// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// AH is an address handle: the destination of datagrams. Its methods may be
// called concurrently.
type AH struct {
	object object.Object
	pd     *PD
	raw    *libibverbs.Ah
}

// GRHLen is the number of bytes before the message in each received datagram.
// They hold the global route header (GRH), if there is one.
const GRHLen = 40

// CreateAH creates an address handle; see ibv_create_ah(3). On RoCE, the kernel
// may look up the destination's hardware address for up to three seconds. The
// call occupies an OS thread during that time, and without an answer fails with
// an error matching syscall.ETIMEDOUT.
func (pd *PD) CreateAH(attr AHAttr) (*AH, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	raw, err := attr.raw()
	if err != nil {
		return nil, cerr.Argument("ibv_create_ah", pd.object.Name(), err)
	}
	ah, err := libibverbs.CreateAh(pd.raw, &raw)
	if err != nil {
		err = pd.device.explain(err, addressHandles, 0)
		return nil, wrap(towards(pd.object.Name(), &raw, err), err)
	}
	return pd.newAH(ah), nil
}

// CreateAHFromWC creates an address handle to answer a datagram that was
// received on a port; see ibv_create_ah_from_wc(3). grh is the memory of the
// receive, with the header in its first GRHLen bytes. On RoCE, the call may
// block for up to three seconds, like CreateAH.
func (pd *PD) CreateAHFromWC(wc *WC, grh []byte, port int) (*AH, error) {
	const op = "ibv_create_ah_from_wc"
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	header, n, err := received(op, pd.device, wc, grh, port)
	if err != nil {
		return nil, err
	}
	alone := wc.raw.Wc // C must not see the caller's other fields
	ah, err := libibverbs.CreateAhFromWc(pd.raw, &alone, &header, n)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	return pd.newAH(ah), nil
}

// AHAttrFromWC returns the path back to the sender of a datagram; see
// ibv_init_ah_from_wc(3). It takes the arguments of CreateAHFromWC.
func (d *Device) AHAttrFromWC(wc *WC, grh []byte, port int) (AHAttr, error) {
	const op = "ibv_init_ah_from_wc"
	if err := d.self().Use(); err != nil {
		return AHAttr{}, err
	}
	defer d.object.Done()
	header, n, err := received(op, d, wc, grh, port)
	if err != nil {
		return AHAttr{}, err
	}
	alone := wc.raw.Wc // C must not see the caller's other fields
	var raw libibverbs.AhAttr
	if err := libibverbs.InitAhFromWc(d.raw, n, &alone, &header, &raw); err != nil {
		return AHAttr{}, wrap(d.Name(), err)
	}
	return AHAttrFromRaw(&raw), nil
}

// received checks a received datagram and returns its header, and the port
// number in C's type. The header is zero if the datagram came without one,
// which can happen on InfiniBand.
func received(op string, c *Device, wc *WC, grh []byte, port int) (header libibverbs.Grh, n uint8, err error) {
	bad := func(format string, args ...any) error { return cerr.Refuse(op, c.Name(), format, args...) }
	if wc == nil {
		return header, 0, cerr.Nil(op, "wc")
	}
	if n, err = portNumber(op, c, port); err != nil {
		return header, 0, err
	}
	switch {
	case wc.Err() != nil:
		return header, 0, bad("the completion is of a request that failed")
	case wc.Opcode()&WCRecv == 0:
		return header, 0, bad("the completion is not of a receive")
	case wc.raw.WcFlags&libibverbs.IBV_WC_GRH == 0:
		return header, n, nil
	case len(grh) < GRHLen:
		return header, 0, bad("grh has %d bytes, fewer than the %d of the header", len(grh), GRHLen)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&header)), GRHLen), grh)
	return header, n, nil
}

func (pd *PD) newAH(raw *libibverbs.Ah) *AH {
	ah := &AH{pd: pd, raw: raw}
	ah.object.Init(fmt.Sprintf("AH %d of %s", raw.Handle, pd.device.Name()), &pd.object)
	return ah
}

// PD returns the handle's protection domain. Queue pairs of the same protection
// domain may use the handle.
func (ah *AH) PD() *PD { return ah.pd }

// Raw returns the C object, which is valid until Close.
func (ah *AH) Raw() *libibverbs.Ah { return ah.raw }

func (ah *AH) self() *object.Object {
	if ah == nil {
		return nil
	}
	return &ah.object
}

// Close destroys the handle; see ibv_destroy_ah(3). Requests that use it must
// have completed.
func (ah *AH) Close() error {
	return ah.self().Close(nil, func() error {
		return wrap(ah.object.Name(), ah.pd.device.unlessRemoved(libibverbs.DestroyAh(ah.raw)))
	})
}

// AHAttr describes a path to a port or to a multicast group.
type AHAttr struct {
	Port        int    // port of the local device, from 1
	DLID        uint16 // destination's local identifier; 0 on RoCE
	SL          uint8  // service level, up to 15
	SrcPathBits uint8  // selects one of the port's local identifiers, up to 127
	StaticRate  Rate   // maximum rate; 0 means the port's rate

	// GID of the destination
	DGID         GID    // destination
	SGIDIndex    int    // index of the source's GID in the port's GID table
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8  // 0 and 1 allow no routers; on RoCE v2 the kernel chooses
	TrafficClass uint8  // DSCP in the upper 6 bits; on RoCE v2, the traffic class of the IP header
}

const (
	maxQPN       = 1<<24 - 1
	maxPSN       = 1<<24 - 1
	maxFlowLabel = 1<<20 - 1
)

// inRange returns an error if v is not in the range from low to high.
func inRange[T int | uint8 | uint32](name string, v, low, high T) error {
	if v < low || v > high {
		return cerr.Invalid("%s is %d, not from %d to %d", name, v, low, high)
	}
	return nil
}

// firstError returns the first error that is not nil.
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

// towards returns name, to which it adds the path if err says that the
// destination does not answer.
func towards(name string, a *libibverbs.AhAttr, err error) string {
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH} {
		if errors.Is(err, errno) && a.IsGlobal != 0 {
			return fmt.Sprintf("%s, from GID index %d of port %d to %s",
				name, a.Grh.SgidIndex, a.PortNum, GID(*a.Grh.Dgid.Raw()).Addr())
		}
	}
	return name
}

// AHAttrFromRaw converts a path from C's form. It returns the zero value for
// nil.
func AHAttrFromRaw(raw *libibverbs.AhAttr) AHAttr {
	if raw == nil {
		return AHAttr{}
	}
	a := AHAttr{
		Port: int(raw.PortNum), DLID: raw.Dlid, SL: raw.Sl, SrcPathBits: raw.SrcPathBits,
		StaticRate: Rate(raw.StaticRate),
	}
	if raw.IsGlobal != 0 {
		g := &raw.Grh
		a.DGID, a.SGIDIndex, a.FlowLabel = GID(*g.Dgid.Raw()), int(g.SgidIndex), g.FlowLabel
		a.HopLimit, a.TrafficClass = g.HopLimit, g.TrafficClass
	}
	return a
}
