// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
)

// device is the place of an RDMA device, which may be removed and inserted
// again.
type device struct {
	index int
	name  string

	mu         sync.Mutex
	verbs      *ibverbs.Device // nil while the device is gone
	domain     *domain         // nil while the device is gone
	generation uint8           // of the next domain
	removed    []*domain       // domains of removed devices, which connections still use
	addrs      []netip.Addr
}

// domain is a protection domain with the regions in it.
type domain struct {
	pd         *ibverbs.PD
	generation uint8 // number of domains that there were before, modulo 256

	// Guarded by the device's mu.
	users int                     // paths
	left  map[*Region]*ibverbs.MR // once the device is removed, the regions that paths may still use
}

// findDevices returns the devices with the given names, or all that have an
// address.
func findDevices(names []string) ([]*device, error) {
	byName, err := deviceAddresses()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		for name := range byName {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	if len(names) > maxDevices {
		return nil, cerr.Refuse(opNew, "", "%d devices; at most %d are possible", len(names), maxDevices)
	}
	var devices []*device
	for i, name := range names {
		addrs, ok := byName[name]
		if !ok || slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("transfer: %q: %w, or none with an address, or named twice", name, ibverbs.ErrNoDevice)
		}
		devices = append(devices, &device{index: i, name: name, addrs: addrs})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("transfer: no RDMA device has an address: %w", ibverbs.ErrNoDevice)
	}
	return devices, nil
}

// deviceAddresses returns the addresses of all devices, by their names.
func deviceAddresses() (map[string][]netip.Addr, error) {
	addrs, err := rdmacm.LocalAddrs()
	if err != nil {
		return nil, err
	}
	devices, err := rdmacm.Devices()
	if err != nil {
		return nil, err
	}
	for _, d := range devices { // some have addresses that the system does not have
		entries, err := d.QueryGIDTable()
		if err != nil {
			continue // the device is going
		}
		for _, entry := range entries {
			addr := entry.Addr()
			if addr.IsValid() && !addr.IsLinkLocalUnicast() && !addr.IsMulticast() && !addr.IsUnspecified() && !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	byName := map[string][]netip.Addr{}
	for _, addr := range addrs {
		// Which device has an address is known where it is bound: not every
		// transport has addresses in its GIDs.
		ln, err := rdmacm.Listen(context.Background(), net.JoinHostPort(addr.String(), "0"), nil)
		if err != nil {
			continue // the address or the device is going, or is in another network namespace
		}
		if d, err := ln.Device(); err == nil {
			byName[d.Name()] = append(byName[d.Name()], addr)
		}
		if err := ln.Close(); err != nil {
			return nil, err
		}
	}
	return byName, nil
}

func (d *device) addresses() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addrs
}

// use returns the protection domain on a device for a path, which passes it to
// leave once it is destroyed.
func (e *Engine) use(d *device) (*domain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := e.openDomain(d); err != nil {
		return nil, err
	}
	d.domain.users++
	return d.domain, nil
}

// openDomain makes the protection domain on a device that has come back or is
// new, registers all regions, and tells the peers their keys. The caller holds
// d.mu.
func (e *Engine) openDomain(d *device) error {
	if d.domain != nil {
		return nil
	}
	verbs, err := rdmacm.Devices()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(verbs, func(v *ibverbs.Device) bool { return v.Name() == d.name && !v.Removed() })
	if i < 0 {
		return fmt.Errorf("transfer: device %s: %w", d.name, ibverbs.ErrNoDevice)
	}
	pd, err := verbs[i].AllocPD()
	if err != nil {
		return err
	}
	made := &domain{pd: pd, generation: d.generation}
	d.generation++ // also if this fails: peers may have been told of a region
	if err := e.registerAll(d, made); err != nil {
		return errors.Join(err, pd.Close())
	}
	d.verbs, d.domain = verbs[i], made
	return nil
}

// leave ends a path's use of a domain. The path's queue pair is destroyed.
func (e *Engine) leave(d *device, used *domain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	used.users--
	d.closeRemoved()
}

// connectionEnded is called when a connection on a device has ended, because of
// err. used is the connection's domain, or nil if there was no connection. If
// the device was removed, it gives up the memory on it as soon as no path uses
// it. The engine registers the memory anew when the device is back. The kernel
// may remove a device only once all programs have let it go.
func (e *Engine) connectionEnded(d *device, used *domain, err error) {
	event, ok := errors.AsType[*rdmacm.EventError](err)
	if !ok || event.Type != rdmacm.EventDeviceRemoval {
		used = nil
	}
	if !e.dropRemoved(d, used, err) {
		// The connection's end may be heard of before the removal is.
		time.AfterFunc(time.Second, func() { e.dropRemoved(d, nil, err) })
	}
}

// dropRemoved gives up the memory on a device that is known to be removed, or
// of which a connection has heard that. gone is the domain of that connection,
// or nil: the device may be back with another one. It reports whether there is
// nothing left to give up.
func (e *Engine) dropRemoved(d *device, gone *domain, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.domain != nil && (d.domain == gone || isRemoved(d.verbs)) {
		e.log(slog.LevelWarn, "transfer: device removed", "device", d.name, "error", err)
		e.takeRegions(d)
		d.removed, d.domain, d.verbs = append(d.removed, d.domain), nil, nil
	}
	d.closeRemoved()
	return d.domain == nil && len(d.removed) == 0
}

// closeRegion deregisters what is left of a region on a removed device. The
// caller holds the device's mu.
func (d *domain) closeRegion(r *Region) error {
	if mr := d.left[r]; mr != nil {
		if err := mr.Close(); err != nil {
			return err
		}
		delete(d.left, r)
	}
	return nil
}

// closeRemoved frees the domains of the removed device that no path uses. As
// long as a path has not heard of the removal, requests of both ends may be in
// progress: without their regions, they would fail as if they were wrong. The
// caller holds d.mu.
func (d *device) closeRemoved() {
	before := len(d.removed)
	d.removed = slices.DeleteFunc(d.removed, func(old *domain) bool {
		if old.users > 0 {
			return false
		}
		for r := range old.left {
			if old.closeRegion(r) != nil {
				return false
			}
		}
		return old.pd.Close() == nil
	})
	if len(d.removed) < before {
		_, _ = rdmacm.Devices() // lets go what is not used any more
	}
}

// isRemoved reports whether a device is removed, or waits for its users to be.
func isRemoved(verbs *ibverbs.Device) bool {
	if verbs.Removed() {
		return true
	}
	listed, err := ibverbs.Devices()
	return err == nil && !slices.ContainsFunc(listed, func(d ibverbs.DeviceEntry) bool { return d.Name == verbs.Name() })
}

// closeDevice frees the protection domains of a device.
func (e *Engine) closeDevice(d *device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	d.closeRemoved()
	for _, open := range append(d.removed, d.domain) {
		if open != nil {
			errs = append(errs, open.pd.Close())
		}
	}
	d.removed, d.domain, d.verbs = nil, nil, nil
	return errors.Join(errs...)
}

// deviceAt returns the device that has a local address.
func (e *Engine) deviceAt(addr netip.Addr) (*device, error) {
	addr = addr.Unmap().WithZone("")
	for range 2 {
		for _, d := range e.devices {
			if slices.Contains(d.addresses(), addr) {
				return d, nil
			}
		}
		// The addresses may have changed.
		byName, err := deviceAddresses()
		if err != nil {
			return nil, err
		}
		for _, d := range e.devices {
			d.mu.Lock()
			if addrs := byName[d.name]; addrs != nil {
				d.addrs = addrs
			}
			d.mu.Unlock()
		}
	}
	return nil, fmt.Errorf("transfer: no device of the engine has the address %v: %w", addr, ibverbs.ErrNoDevice)
}
