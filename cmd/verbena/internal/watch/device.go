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

// device is one that is watched.
type device struct {
	name   string
	device *ibverbs.Device
	ids    map[string]*handled.ID // bound to an address of the network interface
}

// list begins to watch the devices that are new, wanted or not: librdmacm opens
// all of them, and each must be given up when it is to be removed. So it drops
// those that are listed no more: the kernel waits until they are closed, and
// tells that by an id only, which a device may not have yet.
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
	_, _ = rdmacm.Devices() // rdmacm, too, gives up those that are gone; bind tells what fails
	for _, found := range list {
		if w.devices[found.Name] != nil {
			continue
		}
		c, err := ibverbs.Open(found.Name)
		if errors.Is(err, ibverbs.ErrNoDevice) {
			continue // it has gone since it was listed
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

// watch waits for the device's events until it is gone.
func (w *watcher) watch(ctx context.Context, d *device) {
	for ev, err := range d.device.Events(ctx) {
		w.send(ctx, func() []event {
			if err != nil {
				w.drop(d)
				return nil
			}
			w.bind(ctx) // there may be an address now
			return []event{{Device: d.name, Port: ev.Port(), Event: ev.Type.String()}}
		})
	}
}

// drop gives up a device, once. Its ids close when their handlers have
// returned.
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

// bind makes an id for each network interface of RoCE that has none yet. It
// also tells when the device is to be removed, for which some drivers wait for
// close.
func (w *watcher) bind(ctx context.Context) {
	for _, d := range w.devices {
		gids, _ := d.device.QueryGIDTable() // the device may be gone already
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
		return id.Close() // the address cannot be used yet, or no more
	}
	d.ids[gid.NetDev] = id
	_, err = id.ID().Device() // so that rdmacm, too, gives up the device
	return err
}
