package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// AH is an address handle: where datagrams go. Its methods may be called
// concurrently.
type AH struct {
	object object.Object
	pd     *PD
	raw    *libibverbs.Ah
}

// GRHLen is how many bytes of each received datagram belong to the header of
// its global route: they come before the message, if there is none too.
const GRHLen = 40

// CreateAH makes an address handle; see ibv_create_ah(3). On RoCE the kernel
// may look for the hardware address of the destination, for up to three
// seconds; the call then holds a thread, and ends with ETIMEDOUT if there is no
// answer.
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
		return nil, wrap(towards(pd.object.Name(), &raw, err), err)
	}
	return pd.newAH(ah), nil
}

// CreateAHFromWC makes an address handle for an answer to a datagram that was
// received on a port; see ibv_create_ah_from_wc(3). grh is the memory of the
// receive, whose first GRHLen bytes hold the header. It waits as CreateAH does.
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
	alone := wc.raw.Wc // because C must not see what else the caller's struct may have
	ah, err := libibverbs.CreateAhFromWc(pd.raw, &alone, &header, n)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	return pd.newAH(ah), nil
}

// AHAttrFromWC returns the way back to the sender of a datagram, as
// CreateAHFromWC finds it; see ibv_init_ah_from_wc(3).
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
	alone := wc.raw.Wc // because C must not see what else the caller's struct may have
	var raw libibverbs.AhAttr
	if err := libibverbs.InitAhFromWc(d.raw, n, &alone, &header, &raw); err != nil {
		return AHAttr{}, wrap(d.Name(), err)
	}
	return ahAttrOf(&raw), nil
}

// received checks a received datagram and returns its header, which is zero if
// it came without one, as it may on InfiniBand.
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
	case wc.raw.WcFlags&uint32(libibverbs.IBV_WC_GRH) == 0:
		return header, n, nil
	case len(grh) < GRHLen:
		return header, 0, bad("grh has %d bytes, and the header %d", len(grh), GRHLen)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&header)), GRHLen), grh)
	return header, n, nil
}

func (pd *PD) newAH(raw *libibverbs.Ah) *AH {
	ah := &AH{pd: pd, raw: raw}
	ah.object.Init(fmt.Sprintf("AH %d of %s", raw.Handle, pd.device.Name()), &pd.object)
	return ah
}

// PD returns the protection domain that the handle belongs to. Queue pairs of
// the same one may use it.
func (ah *AH) PD() *PD { return ah.pd }

// Raw returns the C object, which is valid until Close.
func (ah *AH) Raw() *libibverbs.Ah { return ah.raw }

func (ah *AH) self() *object.Object {
	if ah == nil {
		return nil
	}
	return &ah.object
}

// Close destroys the handle; see ibv_destroy_ah(3). Requests that name it must
// have completed.
func (ah *AH) Close() error {
	return ah.self().Close(nil, func() error {
		return wrap(ah.object.Name(), ah.pd.device.unlessRemoved(libibverbs.DestroyAh(ah.raw)))
	})
}
