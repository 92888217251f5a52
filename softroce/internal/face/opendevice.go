// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// #include <stdlib.h>
import "C"

// openDevice is the device that librdmacm opens. It closes it only when the device was removed and has
// no users any more. Its protection domain is for ids whose programs have none, and lives as long as it has users.
type openDevice struct {
	c     *libibverbs.Context
	pd    *libibverbs.Pd
	users int
}

func init() {
	cm.GetDevices = func(count *int32) (**libibverbs.Context, syscall.Errno) {
		n := self()
		n.lock()
		defer n.unlock()
		list, err := n.getDevices()
		if count != nil {
			*count = int32(len(list))
		}
		return unsafe.SliceData(list), err
	}
	cm.FreeDevices = func(list **libibverbs.Context) {
		n := self()
		n.lock()
		defer n.unlock()
		if *list != nil {
			n.leaveDevice(*list)
		}
		free(list)
	}
}

// getDevices returns a list, in C's memory, behind which is a null pointer.
func (n *node) getDevices() ([]*libibverbs.Context, syscall.Errno) {
	if err := n.useDevice(); err != 0 {
		return nil, err
	}
	list := alloc[[2]*libibverbs.Context]()
	list[0] = n.cm.device.c
	return list[:1], 0
}

// useDevice opens the device, if it is not open, until leaveDevice at least.
func (n *node) useDevice() syscall.Errno {
	d := n.cm.device
	if d == nil {
		c, err := n.open()
		if err != 0 {
			return err
		}
		d = &openDevice{c: c}
		n.cm.device, n.cm.opened[c] = d, d
	}
	d.users++
	return 0
}

// defaultPD returns the device's protection domain.
func (n *node) defaultPD() (*libibverbs.Pd, syscall.Errno) {
	d := n.cm.device
	if d.pd == nil {
		pd, err := n.allocPD(d.c)
		if err != 0 {
			return nil, err
		}
		d.pd = pd
	}
	return d.pd, 0
}

// leaveDevice ends what useDevice began when c was the device.
func (n *node) leaveDevice(c *libibverbs.Context) {
	d := n.cm.opened[c]
	d.users--
	if d.users > 0 {
		return
	}
	if d.pd != nil {
		n.deallocPD(d.pd) // stays if it is in use, for which librdmacm does not care either
		d.pd = nil
	}
	if d != n.cm.device {
		delete(n.cm.opened, c)
		n.closeContext(c)
	}
}

// disown makes librdmacm open the next device instead of the one that was removed.
func (n *node) disown() {
	d := n.cm.device
	n.cm.device = nil
	if d != nil && d.users == 0 {
		delete(n.cm.opened, d.c)
		n.closeContext(d.c)
	}
}
