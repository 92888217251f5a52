package ibverbs

import (
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/internal/object"
)

// The self methods give an object's lifetime. That of a nil pointer is nil,
// which answers every use with an error instead of a panic.

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

// registry finds the object of ours that an event of C's names: by the address
// of the C object, for as long as that exists.
var registry struct {
	sync.Mutex
	objects map[unsafe.Pointer]any
}

// register makes o the object for a C object that was just created.
func register(raw unsafe.Pointer, o any) {
	registry.Lock()
	defer registry.Unlock()
	if registry.objects == nil {
		registry.objects = map[unsafe.Pointer]any{}
	}
	registry.objects[raw] = o
}

// unregister is called before the C object is destroyed, because the next one
// may have its address; if that fails, the object is registered again.
func unregister(raw unsafe.Pointer) {
	registry.Lock()
	defer registry.Unlock()
	delete(registry.objects, raw)
}

// registered returns the object, nil if there is none.
func registered(raw unsafe.Pointer) any {
	registry.Lock()
	defer registry.Unlock()
	return registry.objects[raw]
}
