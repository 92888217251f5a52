// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/internal/object"
)

// The self methods return an object's lifetime. That of a nil pointer is nil,
// whose methods return an error instead of panicking.

func (d *Device) self() *object.Object {
	if d == nil {
		return nil
	}
	return &d.object
}

func (pd *PD) self() *object.Object {
	if pd == nil {
		return nil
	}
	return &pd.object
}

func (mr *MR) self() *object.Object {
	if mr == nil {
		return nil
	}
	return &mr.object
}

func (ch *CompChannel) self() *object.Object {
	if ch == nil {
		return nil
	}
	return &ch.object
}

func (cq *CQ) self() *object.Object {
	if cq == nil {
		return nil
	}
	return &cq.object
}

func (qp *QP) self() *object.Object {
	if qp == nil {
		return nil
	}
	return &qp.object
}

// registry maps the address of a live C object to the Go object, to find the
// object that an event from C names.
var registry struct {
	sync.Mutex
	objects map[unsafe.Pointer]EventObject
}

// register records o as the Go object of a C object that was just created.
func register(raw unsafe.Pointer, o EventObject) {
	registry.Lock()
	defer registry.Unlock()
	if registry.objects == nil {
		registry.objects = map[unsafe.Pointer]EventObject{}
	}
	registry.objects[raw] = o
}

// unregister removes an object. Call it before destroying the C object, because
// the next C object may have the same address. If destroying fails, register
// the object again.
func unregister(raw unsafe.Pointer) {
	registry.Lock()
	defer registry.Unlock()
	delete(registry.objects, raw)
}

// registered returns the Go object of a C object, or nil if there is none.
func registered(raw unsafe.Pointer) EventObject {
	registry.Lock()
	defer registry.Unlock()
	return registry.objects[raw]
}
