// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// XRCD is a domain of extended reliable connections. Its receiving queue pairs
// deliver messages to its shared receive queues, which may belong to several
// processes. Its methods may be called concurrently.
type XRCD struct {
	object object.Object
	device *Device
	raw    *libibverbs.Xrcd
}

// XRCDConfig says how to open an XRC domain.
type XRCDConfig struct {
	File      *os.File // processes that open the same file share the domain; nil means that only this open device uses it
	Create    bool     // whether to make the domain if the file has none; without a file, a domain is always made
	Exclusive bool     // whether to fail if the domain exists; only with Create
}

// OpenXRCD opens an XRC domain; see ibv_open_xrcd(3). It fails with an error
// matching errors.ErrUnsupported if the device has none.
func (d *Device) OpenXRCD(config XRCDConfig) (*XRCD, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	attr := libibverbs.XrcdInitAttr{
		CompMask: libibverbs.IBV_XRCD_INIT_ATTR_FD | libibverbs.IBV_XRCD_INIT_ATTR_OFLAGS, Fd: -1,
	}
	if config.Create || config.File == nil {
		attr.Oflags |= syscall.O_CREAT
	}
	if config.Exclusive {
		attr.Oflags |= syscall.O_EXCL
	}
	var raw *libibverbs.Xrcd
	name := "anonymous XRCD of " + d.Name()
	open := func() (err error) {
		raw, err = libibverbs.OpenXrcd(d.raw, &attr)
		return err
	}
	if config.File != nil {
		name = fmt.Sprintf("XRCD %s of %s", config.File.Name(), d.Name())
		conn, err := config.File.SyscallConn() // Fd would make the file block
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		onFile := open
		open = func() error {
			var called error
			err := conn.Control(func(fd uintptr) {
				attr.Fd = int32(fd)
				called = onFile()
			})
			return firstError(called, err)
		}
	}
	if err := open(); err != nil {
		return nil, wrap(name, err)
	}
	x := &XRCD{device: d, raw: raw}
	x.object.Init(name, &d.object)
	return x, nil
}

// OpenQP opens a receiving queue pair of the domain by its number; see
// ibv_open_qp(3). Any process may have made it. The queue pair exists at least
// until the returned QP is closed.
func (x *XRCD) OpenQP(num uint32) (*QP, error) {
	if err := x.self().Use(); err != nil {
		return nil, err
	}
	defer x.object.Done()
	attr := libibverbs.QpOpenAttr{
		CompMask: libibverbs.IBV_QP_OPEN_ATTR_NUM | libibverbs.IBV_QP_OPEN_ATTR_XRCD | libibverbs.IBV_QP_OPEN_ATTR_TYPE,
		QpNum:    num, Xrcd: x.raw, QpType: QPTypeXRCRecv,
	}
	raw, err := libibverbs.OpenQp(x.device.raw, &attr)
	if err != nil {
		return nil, wrap(fmt.Sprintf("QP %d in %s", num, x.object.Name()), err)
	}
	qp := &QP{
		device: x.device, raw: raw, destroy: func() error { return libibverbs.DestroyQp(raw) }, lastWQE: make(chan struct{}),
	}
	qp.init(&x.object)
	return qp, nil
}

// Device returns the device that the domain belongs to.
func (x *XRCD) Device() *Device { return x.device }

// Raw returns the C object, which is valid until Close.
func (x *XRCD) Raw() *libibverbs.Xrcd { return x.raw }

func (x *XRCD) self() *object.Object {
	if x == nil {
		return nil
	}
	return &x.object
}

// Close closes the domain; see ibv_close_xrcd(3). While this process has queue
// pairs or shared receive queues in it, Close does nothing and returns a
// *BusyError.
func (x *XRCD) Close() error {
	return x.self().Close(nil, func() error {
		return wrap(x.object.Name(), x.device.unlessRemoved(libibverbs.CloseXrcd(x.raw)))
	})
}
