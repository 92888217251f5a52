// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// A resource is a kind of object of which a device has a limited number.
type resource struct {
	prefix string // of the objects' names
	plural string
	limit  func(DeviceAttr) int
}

var (
	queuePairs          = resource{"QP ", "queue pairs", func(a DeviceAttr) int { return a.MaxQP }}
	completionQueues    = resource{"CQ ", "completion queues", func(a DeviceAttr) int { return a.MaxCQ }}
	sharedReceiveQueues = resource{"SRQ ", "shared receive queues", func(a DeviceAttr) int { return a.MaxSRQ }}
	memoryRegions       = resource{"MR ", "memory regions", func(a DeviceAttr) int { return a.MaxMR }}
	memoryWindows       = resource{"MW ", "memory windows", func(a DeviceAttr) int { return a.MaxMW }}
	protectionDomains   = resource{"PD ", "protection domains", func(a DeviceAttr) int { return a.MaxPD }}
	addressHandles      = resource{"AH ", "address handles", func(a DeviceAttr) int { return a.MaxAH }}
)

// explain looks why C could not create an object, which locks at least so many
// bytes of memory, and sets the error's hint. The device must be in use.
func (d *Device) explain(err error, r resource, bytes int) error {
	e, ok := err.(*Error)
	if !ok || e.Errno != syscall.ENOMEM && e.Errno != syscall.EAGAIN && e.Errno != syscall.ENOSPC {
		return err
	}
	if attr, attrErr := d.QueryDevice(); attrErr == nil {
		if limit, have := r.limit(attr), r.open(d); limit > 0 && have >= limit {
			e.hint = fmt.Sprintf("this process has %d %s, and %s allows %d", have, r.plural, d.Name(), limit)
			return err
		}
	}
	hint := cerr.GroupHint(d.Name())
	if hint == "" && e.Errno == syscall.ENOMEM {
		hint = cerr.LockedHint(bytes)
	}
	if hint != "" {
		e.hint = hint
	}
	return err
}

// leastRequest is the least number of bytes that a queue has for a request.
const leastRequest = 16

// explainMemory is explain for memory that C could not register.
func (pd *PD) explainMemory(err error, addr uint64, size int, access AccessFlags) error {
	if e, ok := err.(*Error); ok && e.Errno == syscall.EFAULT {
		const writes = AccessLocalWrite | AccessRemoteWrite | AccessRemoteAtomic
		setHint(err, cerr.MappingHint(addr, uint64(size), access&writes != 0))
		return err
	}
	return pd.device.explain(err, memoryRegions, size)
}

// open counts the objects of this process on the device, however that was
// opened.
func (r resource) open(d *Device) int {
	suffix := " of " + d.Name()
	return object.Count(func(name string) bool {
		return strings.HasPrefix(name, r.prefix) && strings.HasSuffix(name, suffix)
	})
}

// setHint replaces the hint of an error of a C call.
func setHint(err error, hint string) {
	if e, ok := err.(*Error); ok && hint != "" {
		e.hint = hint
	}
}
