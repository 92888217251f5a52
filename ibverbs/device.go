// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Device is an open RDMA device. Its methods may be called concurrently.
type Device struct {
	object  object.Object
	raw     *libibverbs.Context
	vectors int
	destroy func() error
	events  asyncEvents
	removed atomic.Bool // set by isRemoved
}

// Name returns the device's name.
func (d *Device) Name() string { return d.object.Name() }

// String returns the device's name.
func (d *Device) String() string {
	if d == nil {
		return "<nil>"
	}
	return d.Name()
}

// CompVectors returns how many completion interrupt vectors the device has.
// CQConfig.Vector must be less.
func (d *Device) CompVectors() int { return d.vectors }

// Raw returns the C object, for the functions of package libibverbs. It is
// valid until Close.
func (d *Device) Raw() *libibverbs.Context { return d.raw }

// Close closes the device; see ibv_close_device(3). Calls that wait for its
// events fail with an error matching os.ErrClosed. While the device has
// protection domains, completion channels or completion queues, Close does
// nothing and returns a *BusyError.
func (d *Device) Close() error {
	return d.self().Close(d.stopEvents, func() error { return wrap(d.Name(), d.destroy()) })
}

// closeWhenUnused closes the device now, or when the last object on it is
// closed.
func (d *Device) closeWhenUnused() {
	d.object.WhenIdle(func() { _ = d.Close() }) // Close fails if the device has a new object; WhenIdle calls it again after that
}

// sameDevice returns an error if the object o belongs to another open device
// than the one that op is called on. what names the object that op is called
// on, device is its device, and its is the device of o. C identifies objects by
// numbers, which differ between devices.
func sameDevice(op, what string, device *libibverbs.Context, o *object.Object, its *libibverbs.Context) error {
	if device != its {
		return otherDevice(op, what, o)
	}
	return nil
}

func otherDevice(op, what string, o *object.Object) error {
	return cerr.Argument(op, what, notOfDevice(o))
}

func notOfDevice(o *object.Object) error {
	return cerr.Invalid("%s belongs to another open device", o.Name())
}

// DeviceEntry describes an RDMA device of this machine.
type DeviceEntry struct {
	Name      string // such as mlx5_0 or rxe0
	GUID      GUID   // node GUID
	NodeType  NodeType
	Transport Transport
	Index     int // kernel's device number, -1 if there is none
}

// Devices returns the RDMA devices that are present now; see
// ibv_get_device_list(3). The list is empty if the kernel has no RDMA support
// loaded.
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

// Open opens the device with the given name, or the first device if name is
// empty; see ibv_open_device(3). If there is no such device, the error matches
// ErrNoDevice.
func Open(name string) (*Device, error) {
	what := "open " + name
	if name == "" {
		what = "open a device"
	}
	return openFirst(what, func(d DeviceEntry) bool { return name == "" || d.Name == name })
}

// OpenGUID opens the first device with the node GUID; see ibv_open_device(3).
// If there is none, the error matches ErrNoDevice.
func OpenGUID(guid GUID) (*Device, error) {
	return openFirst("open the device "+guid.String(), func(d DeviceEntry) bool { return d.GUID == guid })
}

func openFirst(what string, match func(DeviceEntry) bool) (*Device, error) {
	var names []string
	var raw *libibverbs.Context
	var device DeviceEntry
	var openErr error
	err := eachDevice(func(d DeviceEntry, dev *libibverbs.Device) {
		names = append(names, d.Name)
		if raw == nil && openErr == nil && match(d) {
			device = d
			raw, openErr = libibverbs.OpenDevice(dev)
		}
	})
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
		return nil, wrap(device.Name, openErr)
	case raw == nil:
		return nil, noDevice(what, names, kernelSysfs.devices())
	}
	d := new(Device)
	d.init(raw, device.Name)
	return d, nil
}

// init makes d the Device of a C device. Close closes both.
func (d *Device) init(raw *libibverbs.Context, name string) {
	d.raw, d.vectors = raw, int(raw.NumCompVectors)
	d.destroy = func() error { return libibverbs.CloseDevice(raw) }
	d.object.Init(name)
}

// noDevice returns the error for a device that was not found. others are the
// devices that libibverbs lists, and kernels the devices that the kernel lists.
// libibverbs omits devices that it cannot open or does not know.
func noDevice(what string, others, kernels []string) error {
	switch {
	case len(others) == 0 && len(kernels) > 0:
		return fmt.Errorf("%s: %w: this machine has %s, but libibverbs has no access to /dev/infiniband, or no provider for it%s",
			what, ErrNoDevice, strings.Join(kernels, ", "), cerr.Doctor)
	case len(others) == 0:
		return fmt.Errorf("%s: %w: this machine has none; VERBENA_DEVICE=soft selects a device in user space, in programs that import package softroce%s", what, ErrNoDevice, cerr.Doctor)
	}
	sort.Slice(others, func(i, j int) bool { return others[i] < others[j] })
	return fmt.Errorf("%s: %w: this machine has %s", what, ErrNoDevice, strings.Join(others, ", "))
}

// OpenNetDev opens the device that has a port with the given network interface,
// and returns that port, from 1; see ibv_open_device(3). If there is none, the
// error matches ErrNoDevice. It opens devices in turn, so it needs access to
// them.
func OpenNetDev(name string) (*Device, int, error) {
	if name == "" {
		return nil, 0, cerr.Refuse("OpenNetDev", "", "name is empty")
	}
	port := 0
	c, err := openLooking("open the device of network interface "+name, func(c *Device) (bool, string, error) {
		interfaces, err := c.netDevs()
		port = interfaces[name]
		names := slices.Collect(maps.Keys(interfaces))
		sort.Slice(names, func(i, j int) bool { return names[i] < names[j] })
		return port != 0, strings.Join(names, ", "), err
	})
	return c, port, err
}

// OpenAddr opens the device that has an IP address of this machine in a GID
// table, and returns that entry of the table; see ibv_open_device(3). If there
// are several entries, it prefers RoCE v2. If there is none, the error matches
// ErrNoDevice. It opens devices in turn, so it needs access to them.
func OpenAddr(addr netip.Addr) (*Device, GIDEntry, error) {
	if !addr.IsValid() {
		return nil, GIDEntry{}, cerr.Refuse("OpenAddr", "", "addr is the zero Addr")
	}
	var found GIDEntry
	c, err := openLooking("open the device with IP address "+addr.String(), func(c *Device) (ok bool, has string, err error) {
		entries, err := c.gidTable()
		found, ok = bestGID(entries, GIDConfig{Addr: addr})
		var addrs []string
		for _, e := range entries {
			if text := e.Addr().String(); !e.elsewhere && !slices.Contains(addrs, text) {
				addrs = append(addrs, text)
			}
		}
		return ok, strings.Join(addrs, ", "), err
	})
	return c, found, err
}

// openLooking opens one device after another, and returns the first one for
// which look reports found. look also returns a description of the device, for
// the error if none is found.
func openLooking(what string, look func(*Device) (found bool, has string, err error)) (*Device, error) {
	devices, err := Devices()
	if err != nil {
		return nil, err
	}
	var others []string
	var failed []error
	for _, d := range devices {
		c, err := Open(d.Name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		found, has, err := look(c)
		if err == nil && found {
			return c, nil
		}
		others = append(others, d.Name+" ("+has+")")
		failed = append(failed, err, c.Close())
	}
	return nil, errors.Join(append([]error{noDevice(what, others, kernelSysfs.devices())}, failed...)...)
}

// ClockDuration converts ticks of the device's clock to a duration. Ticks are
// the difference of two readings of RawClock, or of two completion timestamps,
// in the bits of CompletionTimestampMask. The result is 0 if CoreClock is 0,
// and at most the longest Duration.
func (a DeviceAttr) ClockDuration(ticks uint64) time.Duration {
	if a.CoreClock == 0 {
		return 0
	}
	const perMillisecond = uint64(time.Millisecond)
	high, low := bits.Mul64(ticks, perMillisecond) // CoreClock is in ticks for each millisecond
	if high >= a.CoreClock {
		return math.MaxInt64
	}
	ns, _ := bits.Div64(high, low, a.CoreClock)
	return time.Duration(min(ns, math.MaxInt64))
}

// RawClock reads the device's clock, which completion timestamps use too; see
// ibv_query_rt_values_ex(3). It counts at DeviceAttr.CoreClock from an
// arbitrary start; DeviceAttr.ClockDuration converts differences. If the device
// has no clock, the error matches errors.ErrUnsupported.
func (d *Device) RawClock() (uint64, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	values := libibverbs.ValuesEx{CompMask: libibverbs.IBV_VALUES_MASK_RAW_CLOCK}
	if err := libibverbs.QueryRtValuesEx(d.raw, &values); err != nil {
		return 0, wrap(d.Name(), err)
	}
	if values.CompMask&libibverbs.IBV_VALUES_MASK_RAW_CLOCK == 0 {
		return 0, &Error{Op: "ibv_query_rt_values_ex", Object: d.Name(), Errno: syscall.EOPNOTSUPP}
	}
	// C splits the count as if it were nanoseconds.
	return uint64(values.RawClock.TvSec)*uint64(time.Second) + uint64(values.RawClock.TvNsec), nil
}

// unlessRemoved takes the result of destroying an object on the device, and
// returns nil for EIO if the device was removed. By that time, the kernel has
// destroyed the object, and it fails every call with EIO.
//
// After such an error, C leaks a little memory per object. With
// RDMAV_ALLOW_DISASSOC_DESTROY in the environment, C would free that memory.
// But it would also not wait any more until events are acknowledged, and
// readEvent needs this wait.
func (d *Device) unlessRemoved(err error) error {
	if errors.Is(err, syscall.EIO) && d.isRemoved() {
		return nil
	}
	return err
}

// Removed reports whether the device was removed from the machine, as far as
// the kernel tells. It makes a call that involves no driver, so a device that
// merely fails does not count as removed.
func (d *Device) Removed() bool {
	if d.self().Use() != nil {
		return false
	}
	defer d.object.Done()
	return d.isRemoved()
}

// isRemoved does what Removed does. The caller keeps the device open.
func (d *Device) isRemoved() bool {
	if d.removed.Load() {
		return true
	}
	ch, err := libibverbs.CreateCompChannel(d.raw)
	if err == nil {
		_ = libibverbs.DestroyCompChannel(ch) // cannot fail: nothing uses it
		return false
	}
	if !errors.Is(err, syscall.EIO) {
		return false
	}
	d.removed.Store(true)
	return true
}
