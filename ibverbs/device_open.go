package ibverbs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Open opens the device of the given name; see ibv_open_device(3). Without a
// name it opens the first device. If there is no such device, the error is
// ErrNoDevice.
func Open(name string) (*Device, error) {
	what := "open " + name
	if name == "" {
		what = "open a device"
	}
	return openFirst(what, func(d DeviceEntry) bool { return name == "" || d.Name == name })
}

// OpenGUID opens the device whose node has the GUID, the first if there are
// several; see ibv_open_device(3). If there is none, the error is ErrNoDevice.
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
	return openedContext(raw, device.Name), nil
}

// openedContext makes a Context that closes the device with it.
func openedContext(raw *libibverbs.Context, name string) *Device {
	c := &Device{
		raw: raw, vectors: int(raw.NumCompVectors), destroy: func() error { return libibverbs.CloseDevice(raw) },
	}
	c.object.Init(name)
	return c
}

// noDevice is given the devices that libibverbs lists, and those that the
// kernel has: libibverbs leaves out what it cannot open or does not know.
func noDevice(what string, others, kernels []string) error {
	switch {
	case len(others) == 0 && len(kernels) > 0:
		return fmt.Errorf("%s: %w: this machine has %s, but libibverbs has no access to /dev/infiniband, or no provider for it%s",
			what, ErrNoDevice, strings.Join(kernels, ", "), cerr.Doctor)
	case len(others) == 0:
		return fmt.Errorf("%s: %w: this machine has none%s", what, ErrNoDevice, cerr.Doctor)
	}
	slices.Sort(others)
	return fmt.Errorf("%s: %w: this machine has %s", what, ErrNoDevice, strings.Join(others, ", "))
}

// OpenNetDev opens the device that has the network interface on one of its
// ports, and returns the port, from 1 on; see ibv_open_device(3). If there is
// none, the error is ErrNoDevice. It looks into every device, so it needs
// access to them.
func OpenNetDev(name string) (*Device, int, error) {
	if name == "" {
		return nil, 0, cerr.Refuse("OpenNetDev", "", "name is empty")
	}
	port := 0
	c, err := openLooking("open the device of network interface "+name, func(c *Device) (bool, string, error) {
		interfaces, err := c.netDevs()
		port = interfaces[name]
		return port != 0, strings.Join(slices.Sorted(maps.Keys(interfaces)), ", "), err
	})
	return c, port, err
}

// OpenAddr opens the device that has the IP address of this machine in a GID
// table, and returns that entry; RoCE v2 comes first. See ibv_open_device(3).
// If there is none, the error is ErrNoDevice. It looks into every device, so it
// needs access to them.
func OpenAddr(addr netip.Addr) (*Device, GIDEntry, error) {
	if !addr.IsValid() {
		return nil, GIDEntry{}, cerr.Refuse("OpenAddr", "", "addr is the zero Addr")
	}
	var found GIDEntry
	c, err := openLooking("open the device with IP address "+addr.String(), func(c *Device) (ok bool, has string, err error) {
		entries, err := c.QueryGIDTable()
		found, ok = bestGID(entries, GIDOptions{Addr: addr})
		var addrs []string
		for _, e := range entries {
			if text := e.GID.Addr().String(); !slices.Contains(addrs, text) {
				addrs = append(addrs, text)
			}
		}
		return ok, strings.Join(addrs, ", "), err
	})
	return c, found, err
}

// openLooking opens one device after the other until look finds there what is
// wanted. Look also describes the device to whoever reads that there was none.
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
