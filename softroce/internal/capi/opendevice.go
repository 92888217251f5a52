// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/node"
)

// openDevice is a device that librdmacm has opened for its IDs. librdmacm
// closes it only when the device is removed and no ID uses it any more.
type openDevice struct {
	c     *libibverbs.Context
	card  *node.Card
	pd    *libibverbs.Pd   // protection domain for IDs whose programs give none; nil until an ID needs it
	xrcd  *libibverbs.Xrcd // XRC domain for such IDs; nil until an ID needs it
	users int              // number of calls of useDevice without leaveDevice
}

func init() {
	cm.GetDevices = func(count *int32) (**libibverbs.Context, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		all, err := l.getDevices()
		if count != nil {
			*count = int32(len(all))
		}
		if err != 0 {
			return nil, err
		}
		return listOf(all), 0
	}
	cm.FreeDevices = func(list **libibverbs.Context) {
		l := self()
		l.Lock()
		defer l.Unlock()
		for next := list; *next != nil; next = (**libibverbs.Context)(unsafe.Add(unsafe.Pointer(next), unsafe.Sizeof(next))) {
			l.leaveDevice(*next)
		}
		free(list)
	}
}

// getDevices opens all devices that are not removed. They stay in use until the
// program frees the list. It fails with ENODEV if there are none.
func (l *cmLibrary) getDevices() (all []*libibverbs.Context, err syscall.Errno) {
	for _, card := range l.Cards() {
		if _, there := card.Device(); !there {
			continue
		}
		d, err := l.useDevice(card)
		if err != 0 {
			for _, c := range all {
				l.leaveDevice(c)
			}
			return nil, err
		}
		all = append(all, d.c)
	}
	if len(all) == 0 {
		return nil, syscall.ENODEV
	}
	return all, 0
}

// useDevice opens the device of a card if necessary. The device stays in use
// until leaveDevice is called.
func (l *cmLibrary) useDevice(card *node.Card) (*openDevice, syscall.Errno) {
	d := l.devices[card]
	if d == nil {
		c, err := l.open(card)
		if err != 0 {
			return nil, err
		}
		d = &openDevice{c: c, card: card}
		l.devices[card], l.opened[c] = d, d
	}
	d.users++
	return d, 0
}

// defaultPD returns the protection domain for IDs whose programs give none.
func (l *cmLibrary) defaultPD(d *openDevice) (*libibverbs.Pd, syscall.Errno) {
	if d.pd == nil {
		pd, err := l.allocPD(d.c)
		if err != 0 {
			return nil, err
		}
		d.pd = pd
	}
	return d.pd, 0
}

// xrcdOf returns the XRC domain for IDs of the opened device c whose programs
// give none.
func (l *cmLibrary) xrcdOf(c *libibverbs.Context) (*libibverbs.Xrcd, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	d := l.opened[c]
	if d == nil {
		return nil, syscall.EINVAL
	}
	if d.xrcd == nil {
		x, err := l.openXRCD(c, &libibverbs.XrcdInitAttr{
			CompMask: libibverbs.IBV_XRCD_INIT_ATTR_FD | libibverbs.IBV_XRCD_INIT_ATTR_OFLAGS, Fd: -1, Oflags: syscall.O_CREAT,
		})
		if err != 0 {
			return nil, err
		}
		d.xrcd = x
	}
	return d.xrcd, 0
}

// leaveDevice ends a use of a device that useDevice has begun. c is the context
// of the device.
func (l *cmLibrary) leaveDevice(c *libibverbs.Context) {
	d := l.opened[c]
	d.users--
	if d.users > 0 {
		return
	}
	if d.pd != nil {
		l.deallocPD(d.pd) // fails if the domain is in use, as in librdmacm
		d.pd = nil
	}
	if d.xrcd != nil {
		l.closeXRCD(d.xrcd) // likewise
		d.xrcd = nil
	}
	if d != l.devices[d.card] {
		delete(l.opened, c)
		l.closeContext(c)
	}
}

// deviceRemoved handles the removal of the device of a card: for new IDs,
// librdmacm will open the next device.
func (l *cmLibrary) deviceRemoved(card *node.Card) {
	d := l.devices[card]
	delete(l.devices, card)
	if d != nil && d.users == 0 {
		delete(l.opened, d.c)
		l.closeContext(d.c)
	}
}
