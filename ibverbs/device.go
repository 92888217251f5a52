package ibverbs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Device describes an RDMA device of this machine.
type Device struct {
	Name      string // such as mlx5_0 or rxe0
	GUID      GUID   // of the node
	NodeType  NodeType
	Transport Transport
}

// Devices lists the RDMA devices that are there now; see
// ibv_get_device_list(3). A machine whose kernel has no RDMA support loaded
// has none.
func Devices() ([]Device, error) {
	var devices []Device
	err := eachDevice(func(d Device, _ *libibverbs.Device) { devices = append(devices, d) })
	if errors.Is(err, syscall.ENOSYS) {
		return nil, nil
	}
	return devices, err
}

func eachDevice(f func(Device, *libibverbs.Device)) error {
	list, n, err := libibverbs.GetDeviceList()
	if err != nil {
		return err
	}
	defer libibverbs.FreeDeviceList(list)
	for _, raw := range unsafe.Slice(list, n) {
		guid, err := libibverbs.GetDeviceGuid(raw)
		if err != nil {
			return err
		}
		f(Device{
			Name: cString(raw.Name[:]), GUID: GUID(guid.Host()),
			NodeType: raw.NodeType, Transport: raw.TransportType,
		}, raw)
	}
	return nil
}

// Open opens the device of the given name; see ibv_open_device(3). Without a
// name it opens the first device. If there is no such device, the error is
// ErrNoDevice.
func Open(name string) (*Context, error) {
	var names []string
	var raw *libibverbs.Context
	var device Device
	var openErr error
	err := eachDevice(func(d Device, dev *libibverbs.Device) {
		names = append(names, d.Name)
		if raw == nil && openErr == nil && (name == "" || d.Name == name) {
			device = d
			raw, openErr = libibverbs.OpenDevice(dev)
		}
	})
	what := "open " + name
	if name == "" {
		what = "open a device"
	}
	switch {
	case err != nil:
		if raw != nil { // a later device could not be described
			err = errors.Join(err, libibverbs.CloseDevice(raw))
		}
		if errors.Is(err, syscall.ENOSYS) {
			return nil, fmt.Errorf("%s: %w: %w", what, ErrNoDevice, err)
		}
		return nil, err
	case openErr != nil:
		return nil, cerr.Wrap(device.Name, openErr)
	case raw == nil && len(names) == 0:
		return nil, fmt.Errorf("%s: %w: this machine has none", what, ErrNoDevice)
	case raw == nil:
		slices.Sort(names)
		return nil, fmt.Errorf("%s: %w: this machine has %s", what, ErrNoDevice, strings.Join(names, ", "))
	}
	c := &Context{raw: raw, destroy: func() error { return libibverbs.CloseDevice(raw) }}
	c.object.Init(device.Name)
	return c, nil
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
