// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// #include <stdlib.h>
import "C"

// openDevice is the device that librdmacm opens. librdmacm closes it only when
// the device was removed and has no users any more. The protection domain is
// for ids whose programs give none, and lives while the device has users.
type openDevice struct {
	c     *libibverbs.Context
	pd    *libibverbs.Pd
	users int
}

func init() {
	cm.GetDevices = func(count *int32) (**libibverbs.Context, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		list, err := l.getDevices()
		if count != nil {
			*count = int32(len(list))
		}
		return unsafe.SliceData(list), err
	}
	cm.FreeDevices = func(list **libibverbs.Context) {
		l := self()
		l.Lock()
		defer l.Unlock()
		if *list != nil {
			l.leaveDevice(*list)
		}
		free(list)
	}
}

// getDevices returns a list in C's memory, which a null pointer follows.
func (l *cmLibrary) getDevices() ([]*libibverbs.Context, syscall.Errno) {
	if err := l.useDevice(); err != 0 {
		return nil, err
	}
	list := alloc[[2]*libibverbs.Context]()
	list[0] = l.device.c
	return list[:1], 0
}

// useDevice opens the device, if it is not open. It stays open until
// leaveDevice.
func (l *cmLibrary) useDevice() syscall.Errno {
	d := l.device
	if d == nil {
		c, err := l.open()
		if err != 0 {
			return err
		}
		d = &openDevice{c: c}
		l.device, l.opened[c] = d, d
	}
	d.users++
	return 0
}

// defaultPD returns the device's protection domain.
func (l *cmLibrary) defaultPD() (*libibverbs.Pd, syscall.Errno) {
	d := l.device
	if d.pd == nil {
		pd, err := l.allocPD(d.c)
		if err != 0 {
			return nil, err
		}
		d.pd = pd
	}
	return d.pd, 0
}

// leaveDevice undoes a call of useDevice that found c as the device.
func (l *cmLibrary) leaveDevice(c *libibverbs.Context) {
	d := l.opened[c]
	d.users--
	if d.users > 0 {
		return
	}
	if d.pd != nil {
		l.deallocPD(d.pd) // a domain in use stays, as with librdmacm
		d.pd = nil
	}
	if d != l.device {
		delete(l.opened, c)
		l.closeContext(c)
	}
}

// Removed makes librdmacm open the next device instead of the removed one.
func (l *cmLibrary) Removed() {
	d := l.device
	l.device = nil
	if d != nil && d.users == 0 {
		delete(l.opened, d.c)
		l.closeContext(d.c)
	}
}
