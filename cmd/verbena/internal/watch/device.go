// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// device is a watched device.
type device struct {
	name   string
	device *ibverbs.Device
	ids    map[string]*handled.ID // IDs bound to an address of each network interface
}

// list begins to watch the devices that are new. It watches even those whose
// events are not wanted: librdmacm opens all devices, and each must be closed
// when it is removed. list also drops the devices that have disappeared. The
// kernel ends the removal of a device only when the device is closed. It
// reports the removal to an ID, but a device may have no ID yet.
func (w *watcher) list(ctx context.Context) (added []event, err error) {
	list, err := ibverbs.Devices()
	if err != nil {
		return nil, err
	}
	for name, d := range w.devices {
		if !slices.ContainsFunc(list, func(found ibverbs.DeviceEntry) bool { return found.Name == name }) {
			w.drop(d)
		}
	}
	_, _ = rdmacm.Devices() // makes rdmacm close the removed devices; bind reports errors
	for _, found := range list {
		if w.devices[found.Name] != nil {
			continue
		}
		c, err := ibverbs.Open(found.Name)
		if errors.Is(err, ibverbs.ErrNoDevice) {
			continue // the device was removed after it was listed
		}
		if err != nil {
			w.failed(err)
			continue
		}
		d := &device{found.Name, c, map[string]*handled.ID{}}
		w.devices[d.name] = d
		w.waiters.Go(func() { w.watch(ctx, d) })
		added = append(added, event{Device: d.name, Event: "device added"})
	}
	w.bind(ctx)
	return added, nil
}

// watch waits for the device's events until the device is removed.
func (w *watcher) watch(ctx context.Context, d *device) {
	for ev, err := range d.device.Events(ctx) {
		w.send(ctx, func() []event {
			if err != nil {
				w.drop(d)
				return nil
			}
			w.bind(ctx) // the interface may have an address now
			return []event{{Device: d.name, Port: ev.Port(), Event: ev.Type.String()}}
		})
	}
}

// drop closes a device, once. The device's IDs are closed when their handlers
// have returned.
func (w *watcher) drop(d *device) {
	if w.devices[d.name] != d {
		return
	}
	delete(w.devices, d.name)
	for _, id := range d.ids {
		w.waiters.Go(func() { w.failed(id.Shutdown(context.Background())) })
	}
	w.failed(d.device.Close())
}

// bind creates an ID for each RoCE network interface that has none yet. The ID
// reports when the device is to be removed; some drivers wait until the device
// is closed.
func (w *watcher) bind(ctx context.Context) {
	for _, d := range w.devices {
		gids, _ := d.device.QueryGIDTable() // fails if the device was removed
		for _, e := range gids {
			if e.NetDev != "" && d.ids[e.NetDev] == nil {
				w.failed(w.bindTo(ctx, d, e))
			}
		}
	}
}

func (w *watcher) bindTo(ctx context.Context, d *device, gid ibverbs.GIDEntry) error {
	id, err := handled.New(rdmacm.PortSpaceTCP, func(_ *handled.ID, ev *rdmacm.Event) error {
		w.send(ctx, func() []event {
			if ev.Type == rdmacm.EventDeviceRemoval {
				w.drop(d)
			}
			return []event{{Device: d.name, Port: gid.Port, Event: ev.Type.String()}}
		})
		return nil
	})
	if err != nil {
		return err
	}
	if id.ID().BindAddr(netip.AddrPortFrom(gid.Addr(), 0)) != nil {
		return id.Close() // the address cannot be used yet, or not any more
	}
	d.ids[gid.NetDev] = id
	_, err = id.ID().Device() // makes rdmacm close the device when it is removed
	return err
}
