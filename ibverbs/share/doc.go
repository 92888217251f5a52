// SPDX-License-Identifier: Apache-2.0

// Package share lets processes share an open device and its objects. A process
// can then use memory that another one has registered, and create queue pairs
// in the other's protection domain: several processes can serve one large
// region that was registered once.
//
// One process exports, the other imports. A device is exported as a file, which
// must be passed on, and domains and regions as numbers, which can be sent in
// any way:
//
//	file, err := share.ExportDevice(device) // in one process
//	handle, err := share.ExportPD(pd)
//	export, err := share.ExportMR(mr)
//
//	device, err := share.ImportDevice(file) // in the other
//	pd, err := share.ImportPD(device, handle)
//	mr, err := share.ImportMR(pd, export)
//
// Package [github.com/verbena-go/verbena/ibverbs/devmem] exports and imports
// memory of the device in the same way.
//
// The processes must agree when to close: after the original is closed, an
// import can only be closed. Closing an import leaves the original alone. The
// memory of a region stays in the process that registered it.
//
// Package ibverbs describes the lifetimes of objects. Functions and methods may
// be called concurrently. Few drivers support imports; with the others, the
// Import functions fail with an error matching errors.ErrUnsupported. The
// device of package softroce supports them within a process, such as in a test.
package share
