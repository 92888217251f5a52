// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestMain(m *testing.M) { os.Exit(fakelib.Main(m)) }

// rig is a device whose operations return what the library is told.
type rig struct {
	t   *testing.T
	lib *fakelib.Library
	c   *ibverbs.Device
	pd  *ibverbs.PD
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, lib: fakelib.Open(t, "libibverbs.so.1")}
	raw := (*libibverbs.Qp)(r.lib.Bare()).Context
	raw.Device = object[libibverbs.Device](t)
	copy(raw.Device.Name[:], "fake0")
	r.c = new(ibverbs.Device)
	sealed.Open(r.c.Internals()).InitForeign(raw, func() error { return nil })
	r.pd = r.newPD()
	return r
}

// object returns memory for an object of C's.
func object[T any](t *testing.T) *T {
	t.Helper()
	var o T
	b, err := mem.Map(int(unsafe.Sizeof(o)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mem.Unmap(b)) })
	return (*T)(unsafe.Pointer(&b[0]))
}

// gives makes the next calls succeed with an object of C's.
func gives[T any](r *rig, o *T) *T {
	r.lib.Returns(int64(uintptr(unsafe.Pointer(o))), 0)
	return o
}

// has gives the device an operation.
func (r *rig) has(function string) {
	r.t.Helper()
	from := r.lib.Object(function)
	switch function {
	case "ibv_alloc_td", "ibv_alloc_parent_domain", "ibv_alloc_dm", "ibv_alloc_dmah": // it is the context
	default:
		from = *(*unsafe.Pointer)(from) // it begins with the context
	}
	to, operations := operations(r.c.Raw()), operations((*libibverbs.Context)(from))
	for i := range operations {
		if to[i] == nil {
			to[i] = operations[i]
		}
	}
}

// operations returns those of a context that stand in front of it and in it.
func operations(c *libibverbs.Context) []unsafe.Pointer {
	end := unsafe.Offsetof(extended(c).Context) + unsafe.Offsetof(c.Ops) + unsafe.Sizeof(c.Ops)
	return unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(extended(c))), end/unsafe.Sizeof(uintptr(0)))
}

func extended(c *libibverbs.Context) *libibverbs.VerbsContext {
	var v *libibverbs.VerbsContext
	return (*libibverbs.VerbsContext)(unsafe.Add(unsafe.Pointer(c), -int(unsafe.Offsetof(v.Context))))
}

func (r *rig) newPD() *ibverbs.PD {
	r.t.Helper()
	raw := gives(r, object[libibverbs.Pd](r.t))
	pd, err := r.c.AllocPD()
	require.NoError(r.t, err)
	raw.Context = r.c.Raw()
	return pd
}

// newMR returns a region of 4096 bytes with the keys 1 and 2.
func (r *rig) newMR(access ibverbs.AccessFlags) *ibverbs.MR {
	r.t.Helper()
	raw := gives(r, object[libibverbs.Mr](r.t))
	raw.Lkey, raw.Rkey = 1, 2
	mr, err := r.pd.Alloc(4096, access)
	require.NoError(r.t, err)
	return mr
}

// requireCalled says which function was called last, and with which arguments
// from the first on.
func (r *rig) requireCalled(function string, args ...uint64) {
	r.t.Helper()
	got, _, seen := r.lib.Called()
	require.Equal(r.t, function, got)
	for i, arg := range args {
		require.Equal(r.t, arg, uint64(seen[i]), "argument %d", i)
	}
}

type closer interface{ Close() error }

// closes ends objects that succeed in C.
func (r *rig) closes(objects ...closer) {
	r.t.Helper()
	r.lib.Returns(0, 0)
	for _, o := range objects {
		require.NoError(r.t, o.Close())
	}
}

func address[T any](o *T) uint64 { return uint64(uintptr(unsafe.Pointer(o))) }
