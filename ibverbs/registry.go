package ibverbs

import (
	"sync"
	"unsafe"
)

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
