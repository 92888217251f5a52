// SPDX-License-Identifier: Apache-2.0

// Package devmem allocates memory on devices and memory of their drivers, and
// tells devices how to reach memory.
//
// Some devices have memory of their own, usually some kilobytes. The device
// reads and writes it without crossing PCIe, so it suits small data that is
// used often, such as counters that peers change by atomic operations. [Alloc]
// allocates such memory as a [DM]. Programs copy to and from it, and register
// it for work requests and peers:
//
//	dm, err := devmem.Alloc(device, 64, 0)
//	...
//	mr, err := dm.Register(pd, 0, dm.Len(), ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic)
//	...
//	n, err := dm.ReadAt(buf, 0)
//
// A [Buf] is memory of the host that the device's driver allocated, for a
// confidential guest in which the device does not reach all memory.
//
// A [DMAHandle] has hints for PCIe, such as which processor uses a region of
// the host's memory, so that the device writes to that processor's cache.
// [DMAHandle.Register] registers memory with it.
//
// Package ibverbs describes the lifetimes of objects. Close regions before the
// objects here that they were registered with; [ibverbs.OpenObjects] lists
// those that are open. Functions and methods may be called concurrently.
//
// Few devices have memory or take hints, and a Buf needs rdma-core 64.
// Otherwise, calls fail with an error matching errors.ErrUnsupported.
// [ibverbs.DeviceAttr.MaxDeviceMemory] says how much memory a device has.
package devmem
