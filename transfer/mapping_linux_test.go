// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/transfer"
)

// mapped returns memory that the test maps, and that its engine forgets.
func mapped(t testing.TB, e *transfer.Engine, fd, size, protection, flags int) []byte {
	t.Helper()
	b, err := syscall.Mmap(fd, 0, size, protection, flags)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Forget(b))
		require.NoError(t, syscall.Munmap(b))
	})
	return b
}

// A file that is mapped to be read is written to peers, and read by them. It is
// not read into, and peers do not write to it.
func TestReadOnlyMemory(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	data := random(slot)
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, data, 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	file := mapped(t, p.a, int(f.Fd()), slot, syscall.PROT_READ, syscall.MAP_PRIVATE) // Linux 6.1 refuses MAP_SHARED
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)

	half := slot / 2
	b := p.dialed.NewBatch(2)
	require.NoError(t, b.Write(remote, uint64(half), file[half:]))
	require.NoError(t, carryOut(ctx, b, b.Write(remote, 0, file[:half])))
	require.True(t, bytes.Equal(data, p.atB.Bytes()[:slot]))
	b.Reset()
	err = carryOut(ctx, b, b.Read(file[:100], remote, 0))
	require.ErrorIs(t, err, syscall.EFAULT)
	require.ErrorContains(t, err, "request 0 reads into memory that may not be written")
	require.NoError(t, p.a.Forget(file))

	_, err = p.a.Register(file, transfer.RegionConfig{Access: transfer.WriteAccess})
	require.ErrorIs(t, err, syscall.EFAULT)
	region, err := p.a.Register(file, transfer.RegionConfig{Name: "file", Access: transfer.ReadAccess})
	require.NoError(t, err)
	offered, err := p.accepted.Region(ctx, "file")
	require.NoError(t, err)
	into := make([]byte, slot)
	read := p.accepted.NewBatch(1)
	require.NoError(t, carryOut(ctx, read, read.Read(into, offered, 0)))
	require.True(t, bytes.Equal(data, into))
	b.Reset()
	require.ErrorIs(t, carryOut(ctx, b, b.ReadRegion(region, 0, 100, remote, 0)), syscall.EFAULT)
	require.NoError(t, region.Close())
}

// Memory of which a part can only be read is not registered as a whole.
func TestPartlyReadOnlyMemory(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	page := os.Getpagesize()
	for name, order := range map[string][2]int{"the other part first": {1, 0}, "that part first": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			both := mapped(t, p.a, -1, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			require.NoError(t, syscall.Mprotect(both[:page], syscall.PROT_READ))
			for _, i := range order {
				require.NoError(t, write(ctx, p.dialed, remote, both[i*page:(i+1)*page]))
			}
			require.NoError(t, write(ctx, p.dialed, remote, []byte("written")))
			b := p.dialed.NewBatch(1)
			require.NoError(t, carryOut(ctx, b, b.Read(both[page:page+7], remote, 0)))
			require.Equal(t, "written", string(both[page:page+7]))
		})
	}
}

// Memory that may be written is read into, although a batch has written it to
// the peer together with memory that may not be.
func TestReadOnlyMemoryHidesNone(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	page := os.Getpagesize()
	both := func(t *testing.T) []byte {
		return mapped(t, p.a, -1, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	}
	read := func(into []byte) error {
		b := p.dialed.NewBatch(1)
		return carryOut(ctx, b, b.Read(into, remote, 0))
	}
	write := func(b []byte) error { return write(ctx, p.dialed, remote, b) }
	for name, test := range map[string]func(t *testing.T, b []byte){
		"read first": func(t *testing.T, b []byte) {
			require.NoError(t, read(b[page:]))
			require.NoError(t, write(b))
		},
		"written first": func(t *testing.T, b []byte) {
			require.NoError(t, write(b))
			require.NoError(t, read(b[page:]))
			require.NoError(t, write(b))
		},
		"in one batch": func(t *testing.T, b []byte) {
			both := p.dialed.NewBatch(2)
			require.NoError(t, both.Write(remote, uint64(2*page), b))
			require.NoError(t, carryOut(ctx, both, both.Read(b[page:], remote, 0)))
		},
		"registered": func(t *testing.T, b []byte) {
			region, err := p.a.Register(b[page:], transfer.RegionConfig{Access: transfer.WriteAccess})
			require.NoError(t, err)
			require.NoError(t, write(b))
			before := transfer.Registered(p.a)
			require.NoError(t, read(b[page:]))
			require.Equal(t, before, transfer.Registered(p.a))
			require.NoError(t, region.Close())
		},
		"registered as a whole": func(t *testing.T, b []byte) {
			region, err := p.a.Register(b, transfer.RegionConfig{Access: transfer.ReadAccess})
			require.NoError(t, err)
			require.NoError(t, read(b[page:]))
			require.NoError(t, region.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := both(t)
			require.NoError(t, syscall.Mprotect(b[:page], syscall.PROT_READ))
			test(t, b)
			require.NoError(t, write([]byte("written")))
			require.NoError(t, read(b[page:page+7]))
			require.Equal(t, "written", string(b[page:page+7]))
			require.ErrorIs(t, read(b), syscall.EFAULT)
			require.ErrorIs(t, read(b[:7]), syscall.EFAULT)
			require.NoError(t, syscall.Mprotect(b[:page], syscall.PROT_READ|syscall.PROT_WRITE))
			require.NoError(t, read(b[:7]), "the memory may be written now")
			require.Equal(t, "written", string(b[:7]))
		})
	}
}

// What the program registered, took back and mapped anew is other memory,
// however batches had used it before.
func TestMemoryMappedAnew(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	page := os.Getpagesize()
	for name, used := range map[string]func(b []byte) []byte{
		"not used":       func([]byte) []byte { return nil },
		"used":           func(b []byte) []byte { return b[:2*page] },
		"a part used":    func(b []byte) []byte { return b[page : page+10] },
		"more than used": func(b []byte) []byte { return b[page:] },
	} {
		t.Run(name, func(t *testing.T) {
			b := mapped(t, p.a, -1, 4*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			fill := func(x byte) {
				for i := range b {
					b[i] = x
				}
			}
			before := transfer.Registered(p.a)
			fill(1)
			require.NoError(t, write(ctx, p.dialed, remote, used(b)))
			region, err := p.a.Register(b[:2*page], transfer.RegionConfig{})
			require.NoError(t, err)
			require.NoError(t, write(ctx, p.dialed, remote, b[:2*page]))
			require.NoError(t, region.Close())
			require.Equal(t, before, transfer.Registered(p.a))
			require.NoError(t, syscall.Madvise(b, syscall.MADV_DONTNEED)) // as unmapping and mapping at the same address
			fill(2)
			require.NoError(t, write(ctx, p.dialed, remote, b[:2*page]))
			require.Equal(t, bytes.Repeat([]byte{2}, 2*page), p.atB.Bytes()[:2*page])
		})
	}
}

// Close of a region waits for a batch that uses its memory together with more,
// but not for later ones that use the rest.
func TestCloseOfRegionUsedWithoutIt(t *testing.T) {
	needSoft(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{RetryTimeout: time.Minute})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	data := random(slot)
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: p.Kind == softroce.KindWrite} })
	t.Cleanup(noFaults)
	var batches []*transfer.Batch
	submit := func(data []byte) {
		b := p.dialed.NewBatch(1)
		require.NoError(t, b.Write(remote, 0, data))
		require.NoError(t, b.Submit(ctx))
		batches = append(batches, b)
	}
	submit(data)
	region, err := p.a.Register(data[100:200], transfer.RegionConfig{})
	require.NoError(t, err)
	before := transfer.Registered(p.a)
	closed := make(chan error, 1)
	go func() { closed <- region.Close() }()
	for transfer.Registered(p.a) == before { // until they do not use what the first one does
		submit(data[300:310])
	}
	require.Empty(t, closed)
	noFaults()
	for _, b := range batches {
		require.NoError(t, b.Wait(ctx))
	}
	require.NoError(t, <-closed)
}
