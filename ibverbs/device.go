package ibverbs

import (
	"bytes"
	"errors"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// DeviceEntry describes an RDMA device of this machine.
type DeviceEntry struct {
	Name      string // such as mlx5_0 or rxe0
	GUID      GUID   // of the node
	NodeType  NodeType
	Transport Transport
	Index     int // the kernel's number of the device, -1 if it has none
}

// Devices lists the RDMA devices that are there now; see
// ibv_get_device_list(3). A machine whose kernel has no RDMA support loaded
// has none.
func Devices() ([]DeviceEntry, error) {
	var devices []DeviceEntry
	err := eachDevice(func(d DeviceEntry, _ *libibverbs.Device) { devices = append(devices, d) })
	if errors.Is(err, syscall.ENOSYS) {
		return nil, nil
	}
	return devices, err
}

func eachDevice(f func(DeviceEntry, *libibverbs.Device)) error {
	list, n, err := libibverbs.GetDeviceList()
	if err != nil {
		return err
	}
	defer libibverbs.FreeDeviceList(list)
	for _, raw := range unsafe.Slice(list, n) {
		d, err := describe(raw)
		if err != nil {
			return err
		}
		f(d, raw)
	}
	return nil
}

func describe(raw *libibverbs.Device) (DeviceEntry, error) {
	guid, err := libibverbs.GetDeviceGuid(raw)
	if err != nil {
		return DeviceEntry{}, err
	}
	index, err := libibverbs.GetDeviceIndex(raw)
	if err != nil {
		return DeviceEntry{}, err
	}
	return DeviceEntry{
		Name: cString(raw.Name[:]), GUID: GUID(guid.Host()),
		NodeType: raw.NodeType, Transport: raw.TransportType, Index: int(index),
	}, nil
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
