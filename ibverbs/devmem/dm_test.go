// SPDX-License-Identifier: Apache-2.0

package devmem_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// rig is a queue pair that is connected to itself, on a device that has memory.
type rig struct {
	t      *testing.T
	device *ibverbs.Device
	pd     *ibverbs.PD
	qp     *ibverbs.QP
	cq     *ibverbs.CQ
	host   *ibverbs.MR
	all    uint64 // bytes of device memory
}

const anyAccess = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteAtomic

func TestMain(m *testing.M) { os.Exit(testdevice.Main(m, "ExampleAlloc", "ExampleDMAHandle_Register")) }

func newRig(t *testing.T, need ...testdevice.Feature) *rig {
	t.Helper()
	found := testdevice.Require(t)
	if !testdevice.Soft() && !found.Has(t, testdevice.DeviceMemory) {
		t.Skip("the device has no device memory, as Soft-RoCE and most cards")
	}
	found.Have(t, append(need, testdevice.DeviceMemory)...)
	testdevice.NoLeaks(t)
	r := &rig{t: t, device: must(ibverbs.Open(found.Name))(t)}
	attr, err := r.device.QueryDevice()
	require.NoError(t, err)
	r.all = attr.MaxDeviceMemory
	r.pd = must(r.device.AllocPD())(t)
	channel := must(r.device.CreateCompChannel())(t)
	r.cq = must(r.device.CreateCQ(ibverbs.CQConfig{CompQueue: 16, Channel: channel}))(t)
	r.qp = must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, SendQueue: 4, RecvQueue: 4}))(t)
	r.host = must(r.pd.Alloc(1<<16, anyAccess&^lacking(found, t)))(t)
	self, err := r.qp.Addr(ibverbs.QPAddrConfig{Port: found.Port})
	require.NoError(t, err)
	require.NoError(t, r.qp.ConnectTo(self, self, ibverbs.ConnectConfig{Access: anyAccess &^ lacking(found, t)}))
	return r
}

// lacking returns the access that no region of a device without atomic
// operations needs.
func lacking(d testdevice.Device, t *testing.T) ibverbs.AccessFlags {
	if d.Has(t, testdevice.Atomics) {
		return 0
	}
	return ibverbs.AccessRemoteAtomic
}

// post posts the requests that build adds, and waits for n completions.
func (r *rig) post(n int, build func(b *ibverbs.SendBatch) error) []ibverbs.WC {
	r.t.Helper()
	batch, err := ibverbs.NewSendBatch(4, 4)
	require.NoError(r.t, err)
	require.NoError(r.t, build(batch))
	_, err = r.qp.PostSend(batch)
	require.NoError(r.t, err)
	return r.wait(n)
}

// wait waits for n completions.
func (r *rig) wait(n int) []ibverbs.WC {
	r.t.Helper()
	all := make([]ibverbs.WC, n)
	for got := 0; got < n; {
		more, err := r.cq.Wait(r.t.Context(), all[got:])
		require.NoError(r.t, err)
		got += more
	}
	return all
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) + byte(i>>8) + seed
	}
	return b
}

// A program copies to and from device memory; see io.ReaderAt and io.WriterAt.
func TestCopies(t *testing.T) {
	r := newRig(t)
	dm := must(devmem.Alloc(r.device, 1000, 4096))(t)
	want := pattern(1000, 3)
	n, err := dm.WriteAt(want, 0)
	require.NoError(t, err)
	require.Equal(t, 1000, n)
	got, err := io.ReadAll(io.NewSectionReader(dm, 0, 2000))
	require.NoError(t, err)
	require.Equal(t, want, got)
	n, err = dm.ReadAt(got[:8], 996)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 4, n)
	require.Equal(t, want[996:], got[:4])
	_, err = dm.WriteAt(want[:8], 996)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// Regions of device memory serve every request, locally and for peers.
func TestRequests(t *testing.T) {
	r := newRig(t)
	const size = 20000
	dm := must(devmem.Alloc(r.device, size, 64))(t)
	mr := must(dm.Register(r.pd, 64, size-64, anyAccess&^ibverbs.AccessRemoteAtomic))(t)
	require.ErrorIs(t, dm.Close(), syscall.EBUSY)
	require.Nil(t, mr.Bytes())
	require.Zero(t, mr.Remote().Addr)
	want := pattern(size-64, 5)
	copy(r.host.Bytes(), want)
	check := func(name string, wcs []ibverbs.WC) {
		t.Helper()
		for _, wc := range wcs {
			require.NoError(t, wc.Err(), name)
		}
		got := make([]byte, size)
		_, err := dm.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got[64:]), name)
		require.Equal(t, make([]byte, 64), got[:64], name)
		require.True(t, bytes.Equal(want, r.host.Bytes()[:size-64]), name)
		_, err = dm.WriteAt(make([]byte, size), 0)
		require.NoError(t, err)
	}
	fill := func() {
		_, err := dm.WriteAt(want, 64)
		require.NoError(t, err)
		clear(r.host.Bytes())
	}
	host := r.host.Sub(0, size-64)
	check("write into it", r.post(1, func(b *ibverbs.SendBatch) error { return b.Write(1, mr.Remote(), ibverbs.SendSignaled, host) }))
	check("read into it", r.post(1, func(b *ibverbs.SendBatch) error {
		return b.Read(1, r.host.Remote().Sub(0, size-64), ibverbs.SendSignaled, mr.All())
	}))
	recvs, err := ibverbs.NewRecvBatch(1, 4)
	require.NoError(t, err)
	require.NoError(t, recvs.Recv(2, mr.All()))
	_, err = r.qp.PostRecv(recvs)
	require.NoError(t, err)
	check("receive into it", r.post(2, func(b *ibverbs.SendBatch) error { return b.Send(1, ibverbs.SendSignaled, host) }))
	fill()
	check("write from it", r.post(1, func(b *ibverbs.SendBatch) error {
		return b.Write(1, r.host.Remote(), ibverbs.SendSignaled, mr.All())
	}))
	fill()
	check("read from it", r.post(1, func(b *ibverbs.SendBatch) error { return b.Read(1, mr.Remote(), ibverbs.SendSignaled, host) }))
}

// A counter in device memory.
func TestAtomicsOnDM(t *testing.T) {
	r := newRig(t, testdevice.Atomics)
	dm := must(devmem.Alloc(r.device, 8, 8))(t)
	mr := must(dm.Register(r.pd, 0, 8, anyAccess))(t)
	for i := range 10 {
		wcs := r.post(1, func(b *ibverbs.SendBatch) error {
			return b.FetchAdd(1, mr.Remote(), 3, ibverbs.SendSignaled, r.host.Sub(0, 8))
		})
		require.NoError(t, wcs[0].Err())
		require.EqualValues(t, 3*i, binary.NativeEndian.Uint64(r.host.Bytes()))
	}
	counter := make([]byte, 8)
	_, err := dm.ReadAt(counter, 0)
	require.NoError(t, err)
	require.EqualValues(t, 30, binary.NativeEndian.Uint64(counter))
}

// Keys of another domain, and bytes beyond a region, are refused.
func TestForeignRegion(t *testing.T) {
	for name, beyond := range map[string]bool{"foreign": false, "beyond": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			dm := must(devmem.Alloc(r.device, 128, 0))(t)
			pd := r.pd
			if !beyond {
				pd = must(r.device.AllocPD())(t)
			}
			mr := must(dm.Register(pd, 0, 64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
			to := mr.Remote()
			if beyond {
				to.Addr, to.Len = 60, 8
			}
			wcs := r.post(1, func(b *ibverbs.SendBatch) error { return b.Write(1, to, ibverbs.SendSignaled, r.host.Sub(0, 8)) })
			require.Error(t, wcs[0].Err())
			got := make([]byte, 128)
			_, err := dm.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, make([]byte, 128), got)
		})
	}
}

// Many goroutines allocate, register, copy and free, until the device's memory
// is used up and after that.
func TestFlood(t *testing.T) {
	r := newRig(t)
	var tasks sync.WaitGroup
	for i := range 8 {
		tasks.Go(func() {
			want := pattern(int(r.all/16), byte(i))
			for range 50 {
				dm, err := devmem.Alloc(r.device, len(want), 0)
				if errors.Is(err, syscall.ENOMEM) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mr, err := dm.Register(r.pd, 0, dm.Len(), ibverbs.AccessLocalWrite)
				if err == nil {
					_, err = dm.WriteAt(want, 0)
				}
				got := make([]byte, len(want))
				if err == nil {
					_, err = dm.ReadAt(got, 0)
				}
				if err != nil || !bytes.Equal(want, got) || mr.Close() != nil || dm.Close() != nil {
					t.Errorf("goroutine %d: %v", i, err)
					return
				}
			}
		})
	}
	tasks.Wait()
	dm := must(devmem.Alloc(r.device, int(r.all), 0))(t) // nothing is lost
	require.ErrorIs(t, failed(devmem.Alloc(r.device, 1, 0)), syscall.ENOMEM)
	require.ErrorIs(t, failed(devmem.Alloc(r.device, int(r.all)+1, 0)), syscall.EINVAL)
	require.Equal(t, int(r.all), dm.Len())
}

// Regions end and device memory is freed while requests use them: a request
// fails or succeeds, and nothing else is written.
func TestFreeUnderTraffic(t *testing.T) {
	for range 20 {
		t.Run("", func(t *testing.T) {
			r := newRig(t)
			dm, err := devmem.Alloc(r.device, 1<<14, 0)
			require.NoError(t, err)
			mr, err := dm.Register(r.pd, 0, dm.Len(), anyAccess&^ibverbs.AccessRemoteAtomic)
			require.NoError(t, err)
			to := mr.Remote()
			r.post(0, func(b *ibverbs.SendBatch) error {
				for i := range uint64(4) {
					if err := b.Write(i, to, ibverbs.SendSignaled, r.host.Sub(0, 1<<14)); err != nil {
						return err
					}
				}
				return nil
			})
			require.NoError(t, mr.Close())
			require.NoError(t, dm.Close())
			r.wait(4)
			again := must(devmem.Alloc(r.device, 1<<14, 0))(t)
			got := make([]byte, 1<<14)
			_, err = again.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, make([]byte, 1<<14), got, "it is zeroed, and nothing wrote to it since")
		})
	}
}
