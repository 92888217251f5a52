// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/internal/testutil/udmabuf"
)

// dmabuf registers a part of a buffer, or skips the rest of the test where the
// device cannot.
func (r *rig) dmabuf(b ibverbs.DMABuf, access ibverbs.AccessFlags, iova uint64) *ibverbs.MR {
	r.t.Helper()
	b.IOVA = iova
	mr, err := r.pd.RegisterDMABuf(b, access)
	if !testdevice.Soft() && errors.Is(err, errors.ErrUnsupported) {
		r.t.Skipf("%s has no regions of DMA buffers: %v", r.device.Name, err)
	}
	require.NoError(r.t, err)
	r.cleanup(mr)
	return mr
}

// What the device moves into a DMA buffer, and out of it, is what its owner
// sees there.
func TestDMABufTransfers(t *testing.T) {
	udmabuf.Require(t)
	r := open(t)
	page := os.Getpagesize()
	const n = 9000 // more than a packet, and no multiple of anything
	for _, tt := range []struct {
		name   string
		offset int    // of the region in the buffer
		iova   uint64 // of its first byte
	}{
		{"from its beginning", 0, 0},
		{"from the middle of a page, to its end", 2*page + 100, 1<<40 + 100},
		{"up to the last address", page, math.MaxUint64 - 16*uint64(page) + 1 + uint64(page)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := r.sub(t)
			buffer := udmabuf.New(t, 16*page)
			a, b := r.opPair(0, fullAccess)
			size := len(buffer.Bytes) - tt.offset
			mr := r.dmabuf(ibverbs.DMABuf{FD: buffer.FD, Offset: uint64(tt.offset), Length: size}, anyAccess, tt.iova)
			require.Nil(t, mr.Bytes())
			require.Equal(t, ibverbs.RemoteBuffer{Addr: tt.iova, RKey: mr.RKey(), Len: uint64(size)}, mr.Remote())
			const at = 1001 // where in the region
			inside := buffer.Bytes[tt.offset+at:][:n]
			outside := func() {
				t.Helper()
				require.Zero(t, bytes.Count(buffer.Bytes[:tt.offset+at], []byte{0})-tt.offset-at, "bytes before were changed")
				require.Zero(t, bytes.Count(buffer.Bytes[tt.offset+at+n:], []byte{0})-size+at+n, "bytes behind were changed")
			}
			host := a.mr.Sub(0, n)

			want := bytes.Clone(pattern(host.Bytes(), 1))
			a.done(t, func(s *ibverbs.SendBatch) error {
				return s.Write(1, mr.Remote().Sub(at, n), ibverbs.SendSignaled, host)
			})
			require.True(t, bytes.Equal(want, inside), "written")
			outside()

			pattern(inside, 2)
			a.done(t, func(s *ibverbs.SendBatch) error {
				return s.Read(1, mr.Remote().Sub(at, n), ibverbs.SendSignaled, host)
			})
			require.True(t, bytes.Equal(inside, host.Bytes()), "read")

			want = bytes.Clone(pattern(host.Bytes(), 3))
			b.postRecv(t, 2, mr.Sub(at, n))
			a.done(t, func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, host) })
			require.Equal(t, n, collectOK(t, b.recvCQ, 1)[0].ByteLen())
			require.True(t, bytes.Equal(want, inside), "received")
			outside()

			pattern(inside, 4)
			b.postRecv(t, 2, b.mr.Sub(0, n))
			a.done(t, func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, mr.Sub(at, n)) })
			collectOK(t, b.recvCQ, 1)
			require.True(t, bytes.Equal(inside, b.mr.Sub(0, n).Bytes()), "sent")

			_, err := mr.Sub(size-1, 2).Remote()
			require.Error(t, err)
			require.NoError(t, mr.Close())
			clear(buffer.Bytes)
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(1, ibverbs.RemoteBuffer{Addr: tt.iova, RKey: mr.RKey(), Len: n}, ibverbs.SendSignaled, host)
			})
			require.Equal(t, ibverbs.WCRemoteAccess, collect(t, a.sendCQ, 1)[0].Status())
			require.Zero(t, bytes.Count(buffer.Bytes, []byte{0})-len(buffer.Bytes), "written after Close")
		})
	}
}

// The region outlives the program's descriptor, and regions of one buffer are
// each other's neighbours.
func TestDMABufOutlivesDescriptor(t *testing.T) {
	udmabuf.Require(t)
	r := open(t)
	page := os.Getpagesize()
	buffer := udmabuf.New(t, 4*page)
	fd := must(syscall.Dup(buffer.FD))(t)
	closeFD := sync.OnceValue(func() error { return syscall.Close(fd) })
	t.Cleanup(func() { require.NoError(t, closeFD()) })
	first := r.dmabuf(ibverbs.DMABuf{FD: fd, Length: 2 * page}, anyAccess, 0)
	second := r.dmabuf(ibverbs.DMABuf{FD: fd, Offset: uint64(2 * page), Length: 2 * page}, anyAccess, 0)
	require.NoError(t, closeFD())
	a, _ := r.opPair(0, fullAccess)
	want := bytes.Clone(pattern(buffer.Bytes[:2*page], 7))
	a.done(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, second.Remote(), ibverbs.SendSignaled, first.All())
	})
	require.True(t, bytes.Equal(want, buffer.Bytes[2*page:]))
}

// What cannot be registered.
func TestDMABufRefused(t *testing.T) {
	udmabuf.Require(t)
	r := open(t)
	page := os.Getpagesize()
	buffer := udmabuf.New(t, 2*page)
	r.dmabuf(ibverbs.DMABuf{FD: buffer.FD, Length: 2 * page}, anyAccess, 0)
	null := must(os.Open(os.DevNull))(t)
	defer null.Close()
	for name, tt := range map[string]struct {
		b    ibverbs.DMABuf
		want syscall.Errno
	}{
		"longer than the buffer": {ibverbs.DMABuf{FD: buffer.FD, Length: 2*page + 1}, syscall.EINVAL},
		"across its end":         {ibverbs.DMABuf{FD: buffer.FD, Offset: uint64(page), Length: page + 1}, syscall.EINVAL},
		"behind its end":         {ibverbs.DMABuf{FD: buffer.FD, Offset: uint64(2 * page), Length: 1}, syscall.EINVAL},
		"far behind it":          {ibverbs.DMABuf{FD: buffer.FD, Offset: 1 << 62, Length: 1}, syscall.EINVAL},
		"no buffer":              {ibverbs.DMABuf{FD: int(null.Fd()), Length: 1}, syscall.EINVAL},
		"closed descriptor":      {ibverbs.DMABuf{FD: math.MaxInt32, Length: 1}, syscall.EBADF},
	} {
		_, err := r.pd.RegisterDMABuf(tt.b, ibverbs.AccessLocalWrite)
		require.ErrorIs(t, err, tt.want, name)
		require.ErrorContains(t, err, fmt.Sprintf("ibv_reg_dmabuf_mr (%d bytes at %d of descriptor %d on PD ", tt.b.Length, tt.b.Offset, tt.b.FD), name)
	}
}

// A mapping of a DMA buffer has an address like any other memory. The kernel
// cannot pin what belongs to a device there, as it cannot pin a GPU's; the
// device in user space takes what the processor can reach.
func TestDMABufByAddress(t *testing.T) {
	udmabuf.Require(t)
	r := open(t)
	page := os.Getpagesize()
	buffer := udmabuf.New(t, 2*page)
	mapping := must(syscall.Mmap(buffer.FD, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))(t)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mapping)) })
	mr, err := r.pd.Register(mapping, anyAccess)
	if err == nil {
		require.True(t, testdevice.Soft() || !testdevice.LinuxSince(t, 7, 2), "older kernels count the pages of udmabuf's mappings")
		require.NoError(t, mr.Close())
		return
	}
	require.ErrorIs(t, err, syscall.EFAULT)
	require.ErrorContains(t, err, "bad address: the memory is a device's: ")
}
