package flow

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const (
	attrSize = unsafe.Sizeof(libibverbs.FlowAttr{})
	specMax  = unsafe.Sizeof(libibverbs.FlowSpec{}) // a union of all specs
)

// buffer is a rule as C takes it: a struct ibv_flow_attr, and right behind its
// 20 bytes the specs, packed. Those with a pointer are not aligned for it, as C
// has it too.
type buffer struct {
	words [(attrSize + MaxSpecs*specMax + 7) / 8]uint64
	specs uintptr // bytes
}

func (b *buffer) attr() *libibverbs.FlowAttr {
	return (*libibverbs.FlowAttr)(unsafe.Pointer(&b.words))
}

// size returns how many bytes are in use.
func (b *buffer) size() uintptr { return attrSize + b.specs }

// putSpec puts a spec behind the others. It holds no pointers but C's own.
func putSpec[T any](b *buffer, spec *T) {
	size := unsafe.Sizeof(*spec)
	all := unsafe.Slice((*byte)(unsafe.Pointer(&b.words)), unsafe.Sizeof(b.words))
	copy(all[b.size():], unsafe.Slice((*byte)(unsafe.Pointer(spec)), size))
	b.specs += size
}
