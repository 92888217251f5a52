// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// Memory that is not there, or that the process itself may not write.
func TestMemoryThatCannotBeRegistered(t *testing.T) {
	r := open(t)
	page := os.Getpagesize()
	mapped := must(syscall.Mmap(-1, 0, 5*page, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON))(t)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mapped)) })
	// The hole is too small for what other threads map.
	readOnly, gone := mapped[:2*page], mapped[2*page:4*page]
	_, _, errno := syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(&gone[0])), uintptr(len(gone)), 0)
	require.Zero(t, errno)
	for name, err := range map[string]error{
		"not mapped":          closing(r.pd.Register(gone, 0)),
		"read-only, to write": closing(r.pd.Register(readOnly, ibverbs.AccessLocalWrite)),
	} {
		require.ErrorIs(t, err, syscall.EFAULT, name)
		require.ErrorContains(t, err, fmt.Sprintf("ibv_reg_mr (%d bytes on PD ", 2*page), name)
	}
	require.NoError(t, closing(r.pd.Register(readOnly, ibverbs.AccessRemoteRead)))
}

// The kernel pins the pages of a file on a disk for reading; for writing, newer
// kernels refuse.
func TestRegisterFile(t *testing.T) {
	r := open(t)
	f := must(os.CreateTemp(".", "mapped.*.out"))(t) // the folder for temporary files may be in memory
	t.Cleanup(func() { require.NoError(t, os.Remove(f.Name())) })
	defer f.Close()
	require.NoError(t, f.Truncate(4096))
	mapping := must(syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))(t)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mapping)) })
	require.NoError(t, closing(r.pd.Register(mapping, ibverbs.AccessRemoteRead)))
	err := closing(r.pd.Register(mapping, ibverbs.AccessLocalWrite))
	t.Log(err)
	if err != nil || r.device.SoftRoCESince(t, 7, 2) {
		require.ErrorIs(t, err, syscall.EFAULT)
		require.ErrorContains(t, err, "is a file's (MAP_SHARED)")
	}
}

// Regions may overlap; each has its own keys and permissions, and closing one
// leaves the other.
func TestOverlappingRegions(t *testing.T) {
	r := open(t)
	a, _ := r.opPair(0, fullAccess)
	memory := make([]byte, 3*4096)
	whole := must(r.pd.Register(memory, anyAccess))(t)
	r.cleanup(whole)
	part := must(r.pd.Register(memory[4096:8192], ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead))(t)
	same := must(r.pd.Register(memory, anyAccess))(t)
	require.NotEqual(t, whole.RKey(), same.RKey())
	require.NoError(t, same.Close())
	want := bytes.Clone(pattern(a.mr.Bytes()[:100], 5))
	a.done(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, whole.Remote().Sub(5000, 100), ibverbs.SendSignaled, a.mr.Sub(0, 100))
	})
	a.done(t, func(s *ibverbs.SendBatch) error {
		return s.Read(1, part.Remote().Sub(5000-4096, 100), ibverbs.SendSignaled, a.mr.Sub(200, 100))
	})
	require.Equal(t, want, a.mr.Sub(200, 100).Bytes())
	require.NoError(t, part.Close())
	a.done(t, func(s *ibverbs.SendBatch) error {
		return s.Read(1, whole.Remote().Sub(5000, 100), ibverbs.SendSignaled, a.mr.Sub(300, 100))
	})
	require.Equal(t, want, a.mr.Sub(300, 100).Bytes())
	a.requireShut(t, part.Remote().Sub(0, 8))
}

// Closing a region under the requests that use it fails them, or is too late
// for them; nothing else happens.
func TestRegionClosedUnderRequests(t *testing.T) {
	r := open(t)
	for name, tt := range map[string]struct {
		fill func(s *ibverbs.SendBatch, id uint64, mr *ibverbs.MR, a *end) error
		want ibverbs.WCStatus
	}{
		"written by the peer": {func(s *ibverbs.SendBatch, id uint64, mr *ibverbs.MR, a *end) error {
			return s.Write(id, mr.Remote(), 0, a.mr.Sub(0, mr.Len()))
		}, ibverbs.WCRemoteAccess},
		"read into": {func(s *ibverbs.SendBatch, id uint64, mr *ibverbs.MR, a *end) error {
			return s.Read(id, a.mr.Remote(), 0, mr.All())
		}, ibverbs.WCLocalProtection},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, _ := r.opPair(0, fullAccess)
			mr := must(r.pd.Alloc(32<<10, fullAccess))(t)
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				for i := range uint64(depth) {
					if err := tt.fill(s, i, mr, a); err != nil {
						return err
					}
				}
				ibverbs.RawSends(s)[depth-1].SendFlags = ibverbs.SendSignaled
				return nil
			})
			require.NoError(t, mr.Close())
			first := collect(t, a.sendCQ, 1)[0]
			if first.Err() == nil {
				require.EqualValues(t, depth-1, first.ID(), "all were done before")
				return
			}
			requireWC(t, first, first.ID(), a.qp, tt.want, tt.want.Class())
			rest := depth - 1 - int(first.ID())
			for i, wc := range collect(t, a.sendCQ, rest) {
				requireWC(t, wc, first.ID()+1+uint64(i), a.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
			}
		})
	}
}
