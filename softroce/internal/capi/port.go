// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

func init() {
	verbs.QueryDevice = func(c *libibverbs.Context, a *libibverbs.DeviceAttr) syscall.Errno {
		attr, err := locked(c, func(d *engine.Device) (libibverbs.DeviceAttrEx, error) { return d.Attr() })
		*a = attr.OrigAttr
		return err
	}
	verbs.QueryDeviceEx = func(c *libibverbs.Context, in *libibverbs.QueryDeviceExInput, a *libibverbs.DeviceAttrEx, size uint64) syscall.Errno {
		if in != nil && in.CompMask != 0 {
			return syscall.EINVAL
		}
		attr, err := locked(c, func(d *engine.Device) (libibverbs.DeviceAttrEx, error) { return d.Attr() })
		if err == 0 {
			fill(unsafe.Pointer(a), size, &attr)
		}
		return err
	}
	verbs.QueryRtValues = func(_ *libibverbs.Context, v *libibverbs.ValuesEx) syscall.Errno {
		const known = libibverbs.IBV_VALUES_MASK_RAW_CLOCK
		if v.CompMask&^known != 0 {
			return syscall.EINVAL
		}
		now := self().Now()
		v.RawClock = libibverbs.Timespec{TvSec: int64(now / time.Second), TvNsec: int64(now % time.Second)}
		return 0
	}
	verbs.QueryPortSpeed = func(c *libibverbs.Context, port uint32, speed *uint64) (err syscall.Errno) {
		*speed, err = locked(c, func(d *engine.Device) (uint64, error) { return d.PortSpeed(port) })
		return err
	}
	verbs.QueryPort = func(c *libibverbs.Context, port uint8, a *libibverbs.PortAttr, size uint64) syscall.Errno {
		attr, err := locked(c, func(d *engine.Device) (libibverbs.PortAttr, error) { return d.PortAttr(uint32(port)) })
		if err == 0 {
			fill(unsafe.Pointer(a), size, &attr)
		}
		return err
	}
	verbs.QueryGid = func(c *libibverbs.Context, port uint8, index int32, g *libibverbs.Gid) syscall.Errno {
		e, err := locked(c, func(d *engine.Device) (libibverbs.GidEntry, error) { return d.GID(uint32(port), uint32(index)) })
		if err == syscall.ENODATA { // unlike ibv_query_gid_ex, this call returns an empty entry
			err = 0
		}
		*g = e.Gid
		return err
	}
	verbs.QueryGidEx = func(c *libibverbs.Context, port, index uint32, out *libibverbs.GidEntry, flags uint32, size uint64) syscall.Errno {
		if flags != 0 {
			return syscall.EOPNOTSUPP
		}
		e, err := locked(c, func(d *engine.Device) (libibverbs.GidEntry, error) { return d.GID(port, index) })
		if err == 0 {
			fill(unsafe.Pointer(out), size, &e)
		}
		return err
	}
	verbs.QueryGidTable = func(c *libibverbs.Context, out *libibverbs.GidEntry, room uint64, flags uint32, size uint64) (int, syscall.Errno) {
		if flags != 0 {
			return 0, syscall.EOPNOTSUPP
		}
		table, err := locked(c, func(d *engine.Device) ([]libibverbs.GidEntry, error) { return d.GIDs() })
		if err != 0 {
			return 0, err
		}
		if uint64(len(table)) > room {
			return 0, syscall.EINVAL
		}
		for i := range table {
			fill(unsafe.Add(unsafe.Pointer(out), uint64(i)*size), size, &table[i])
		}
		return len(table), 0
	}
	verbs.QueryPkey = func(c *libibverbs.Context, port uint8, index int32, key *libibverbs.Be16) syscall.Errno {
		k, err := locked(c, func(d *engine.Device) (uint16, error) { return d.PKey(uint32(port), int(index)) })
		*key = libibverbs.NewBe16(k)
		return err
	}
	verbs.GetPkeyIndex = func(c *libibverbs.Context, port uint8, key libibverbs.Be16) (int, syscall.Errno) {
		_, err := locked(c, func(d *engine.Device) (uint16, error) {
			k, err := d.PKey(uint32(port), 0)
			if err == nil && libibverbs.NewBe16(k) != key {
				err = syscall.EINVAL
			}
			return k, err
		})
		return 0, err
	}
}

// locked calls f with the node locked. d is the device that the program has
// opened as c. locked returns EINVAL if c is not open.
func locked[T any](c *libibverbs.Context, f func(d *engine.Device) (T, error)) (T, syscall.Errno) {
	l := self()
	l.Lock()
	defer l.Unlock()
	d := l.deviceOf(c)
	if d == nil {
		var none T
		return none, syscall.EINVAL
	}
	v, err := f(d)
	return v, errno(err)
}

// fill copies v to a struct of the program, which has size bytes. A program
// that was compiled with older headers has a shorter struct.
func fill[T any](to unsafe.Pointer, size uint64, v *T) {
	size = min(size, uint64(unsafe.Sizeof(*v)))
	copy(unsafe.Slice((*byte)(to), size), unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
}
