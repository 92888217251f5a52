// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
)

// neighbour is memory as programs have it: a buffer beside pointers of Go's.
type neighbour struct {
	next   *neighbour
	memory [100]byte
}

func newNeighbour() []byte {
	n := &neighbour{next: new(neighbour)}
	return n.memory[:]
}

// What is beside a buffer, in the same object of Go's, does not matter to C,
// which gets the buffer only; nor does a collection find anything forgotten.
func TestMemoryBesidePointers(t *testing.T) {
	region := func(register func(r *rig, b []byte) (*ibverbs.MR, error)) func(*rig, []byte) {
		return func(r *rig, b []byte) {
			gives(r, object[libibverbs.Mr](r.t))
			mr, err := register(r, b)
			require.NoError(r.t, err)
			require.Same(r.t, &b[0], &mr.Bytes()[0])
			r.closes(mr)
		}
	}
	for name, hand := range map[string]func(r *rig, b []byte){
		"Register": region(func(r *rig, b []byte) (*ibverbs.MR, error) { return r.pd.Register(b, 0) }),
		"RegisterIOVA": region(func(r *rig, b []byte) (*ibverbs.MR, error) {
			return r.pd.RegisterIOVA(b, address(&b[0])+1<<20, 0)
		}),
		"DMAHandle.Register": region(func(r *rig, b []byte) (*ibverbs.MR, error) {
			h, err := r.newHandle(devmem.DMAHandleConfig{})
			require.NoError(r.t, err)
			gives(r, object[libibverbs.Mr](r.t))
			return h.Register(r.pd, b, 0)
		}),
		"Rereg": region(func(r *rig, b []byte) (*ibverbs.MR, error) {
			mr := r.newMR(0)
			r.lib.Returns(0, 0)
			return mr, mr.Rereg(ibverbs.ReregConfig{Memory: b})
		}),
		"DM.WriteAt": func(r *rig, b []byte) {
			dm := r.newDM()
			r.lib.Returns(0, 0)
			_, err := dm.WriteAt(b[:64], 0)
			require.NoError(r.t, err)
		},
		"DM.ReadAt": func(r *rig, b []byte) {
			dm := r.newDM()
			r.lib.Returns(0, 0)
			_, err := dm.ReadAt(b[:64], 0)
			require.NoError(r.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, b := newRig(t), newNeighbour()
			require.NotPanics(t, func() { hand(r, b) })
			runtime.GC() // a Pinner that was forgotten ends the program here
			runtime.KeepAlive(b)
		})
	}
}
