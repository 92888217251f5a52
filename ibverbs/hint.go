// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// A resource is a kind of object of which a device has a limited number.
type resource struct {
	prefix string               // prefix of the objects' names
	plural string               // name of the kind, for hints
	limit  func(DeviceAttr) int // maximum number of such objects on a device; 0 if not known
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

// explain finds out why C could not create an object of the kind r, and sets
// the hint of err. bytes is the minimum number of bytes that creating the
// object locks in memory. The caller keeps the device open.
func (d *Device) explain(err error, r resource, bytes int) error {
	e, ok := err.(*Error)
	if ok && e.Errno == syscall.EOPNOTSUPP {
		if attr, attrErr := d.QueryDevice(); attrErr == nil && r.limit(attr) == 0 {
			e.hint = d.Name() + " has no " + r.plural
		}
		return err
	}
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

// leastRequest is the minimum number of bytes that a request takes in a queue.
const leastRequest = 16

// explainMemory is like explain, for memory that C could not register: size
// bytes at addr.
func (pd *PD) explainMemory(err error, addr uint64, size int, access AccessFlags) error {
	if e, ok := err.(*Error); ok && e.Errno == syscall.EFAULT {
		const writes = AccessLocalWrite | AccessRemoteWrite | AccessRemoteAtomic
		setHint(err, cerr.MappingHint(addr, uint64(size), access&writes != 0))
		return err
	}
	return pd.device.explain(err, memoryRegions, size)
}

// lacksFor says which limit of the device a request exceeds, or returns "" if
// it exceeds none that is known. The caller keeps the device open.
func (d *Device) lacksFor(wr *libibverbs.SendWr) string {
	attr, err := d.QueryDevice()
	if err != nil {
		return ""
	}
	switch op := wr.Opcode; {
	case isAtomic(op) && attr.AtomicCap == libibverbs.IBV_ATOMIC_NONE:
		return d.Name() + " has no atomic operations"
	case op == libibverbs.IBV_WR_RDMA_READ && attr.MaxQPInitReadAtomic == 0:
		return d.Name() + " has no RDMA reads"
	case op == libibverbs.IBV_WR_RDMA_READ && int(wr.NumSge) > attr.MaxSGERead:
		return fmt.Sprintf("an RDMA read has %d segments, and %s allows %d", wr.NumSge, d.Name(), attr.MaxSGERead)
	case (op == libibverbs.IBV_WR_BIND_MW || op == libibverbs.IBV_WR_LOCAL_INV || op == libibverbs.IBV_WR_SEND_WITH_INV) && attr.MaxMW == 0:
		return d.Name() + " has no memory windows"
	case (op == libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM || op == libibverbs.IBV_WR_SEND_WITH_IMM) && d.isIWARP():
		return d.Name() + " uses iWARP, and many such devices have no immediate data"
	}
	return ""
}

// isIWARP reports whether the device uses iWARP.
func (d *Device) isIWARP() bool {
	return d.raw != nil && d.raw.Device != nil && d.raw.Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
}

// sendsNoInline reports whether the driver accepts SendInline and then sends as
// if it was not set, from memory that a program may have used again.
// rdma-core's driver for MANA does, and the kernel's takes any MaxInline.
func (d *Device) sendsNoInline() bool {
	if d.raw == nil || d.raw.Device == nil {
		return false
	}
	driver, err := os.Readlink(filepath.Join(cString(d.raw.Device.IbdevPath[:]), "device/driver"))
	return err == nil && filepath.Base(driver) == "mana"
}

// isAtomic reports whether op is an atomic operation.
func isAtomic(op libibverbs.WrOpcode) bool {
	return op == libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP || op == libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD
}

// open returns the number of such objects that this process has on the device,
// including those of other open Devices of the same name.
func (r resource) open(d *Device) int {
	suffix := " of " + d.Name()
	return object.Count(func(name string) bool {
		return strings.HasPrefix(name, r.prefix) && strings.HasSuffix(name, suffix)
	})
}

// setHint replaces the hint of an error of a C call, unless hint is empty.
func setHint(err error, hint string) {
	if e, ok := err.(*Error); ok && hint != "" {
		e.hint = hint
	}
}
