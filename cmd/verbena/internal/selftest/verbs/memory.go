// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"errors"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

var memory = []check.Check{
	{
		Name: "memory.go", Proves: "the device reads and writes memory of Go's heap", Features: []check.Feature{check.Memory},
		Run: on(func(r *rig) {
			for _, n := range []int{1, 64, 5000, 70000} {
				r.Scope(func() {
					b := make([]byte, n+100)
					r.Reserve(len(b))
					r.reaches(keep(r.pd.Register(b[50:50+n], r.access()))(r.T), b[50:50+n])
					r.untouched(b[:50], "before the slice")
					r.untouched(b[50+n:], "behind the slice")
				})
			}
		}),
	},
	{
		Name: "memory.mmap", Proves: "the device reads and writes memory that was mapped", Features: []check.Feature{check.Memory, check.Connections},
		Run: on(func(r *rig) {
			mr := r.alloc(20000, r.access())
			r.reaches(mr, mr.Bytes())
		}),
	},
	{
		Name: "memory.huge", Proves: "the device reads and writes huge pages", Features: []check.Feature{check.Memory},
		Run: on(func(r *rig) {
			mr, err := r.pd.AllocHuge(ibverbs.HugePage2M, ibverbs.HugePage2M, r.access())
			if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EINVAL) {
				r.Skipf("no free huge page of 2 MiB (as root, hugeadm --pool-pages-min 2MB:1 reserves one)")
			}
			r.Reserve(ibverbs.HugePage2M)
			mr = keep(mr, err)(r.T)
			r.reachesPart(mr, mr.Bytes(), ibverbs.HugePage2M-9000)
		}),
	},
	{
		Name: "memory.address", Proves: "a region has the address that it is given", Features: []check.Feature{check.Memory, check.Transfers},
		Run: on(func(r *rig) {
			b := r.mapped(4 * os.Getpagesize())
			for _, base := range []uint64{0, 1 << 40} {
				r.Scope(func() {
					mr := keep(r.pd.RegisterIOVA(b[100:5100], base+100, r.access()))(r.T)
					r.want(mr.Remote().Addr == base+100, "the region's address is %#x instead of %#x", mr.Remote().Addr, base+100)
					r.reaches(mr, b[100:5100])
				})
			}
		}),
	},
	{
		Name: "memory.overlapping", Proves: "regions of the same memory have their own keys and permissions", Features: []check.Feature{check.Memory, check.Protection}, Matters: statusMatters,
		Run: on(func(r *rig) {
			b := r.mapped(os.Getpagesize())
			whole := keep(r.pd.Register(b, r.access()))(r.T)
			part := keep(r.pd.Register(b[:64], ibverbs.AccessLocalWrite))(r.T)
			r.want(whole.RKey() != part.RKey() && whole.LKey() != part.LKey(), "two regions have the same key")
			r.reaches(whole, b)
			r.shut(part.Remote().Sub(0, 8), "write to a region without remote write that another one covers")
		}),
	},
	{
		Name: "memory.closed", Proves: "memory is out of reach once its region is closed", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			b := r.mapped(os.Getpagesize())
			mr := must(r.pd.Register(b, r.access()))(r.T)
			remote := mr.Remote().Sub(0, 8)
			ok(r.T, mr.Close())
			r.shut(ibverbs.RemoteBuffer{Addr: remote.Addr, RKey: remote.RKey, Len: 8}, "write to a region that was closed")
			r.untouched(b, "of a region that was closed")
		}),
	},
	{
		Name: "memory.change", Proves: "a region can be changed in place", Features: []check.Feature{check.Memory},
		Run: on(func(r *rig) {
			b := r.mapped(2 * os.Getpagesize())
			mr := keep(r.pd.Register(b[:os.Getpagesize()], ibverbs.AccessLocalWrite))(r.T)
			access := r.access()
			err := mr.Rereg(ibverbs.ReregConfig{Access: &access})
			if errors.Is(err, errors.ErrUnsupported) {
				r.Lacks("changes of regions")
			}
			ok(r.T, err)
			r.reaches(mr, b[:os.Getpagesize()])
			ok(r.T, mr.Rereg(ibverbs.ReregConfig{Memory: b}))
			r.reaches(mr, b)
		}),
	},
	{
		Name: "memory.refused", Proves: "memory that cannot be registered is refused", Features: []check.Feature{check.Memory, check.Diagnosis}, Matters: "Only the error that a program gets differs.",
		Run: on(func(r *rig) {
			page := os.Getpagesize()
			r.Case("memory without access", refusal("EFAULT"), r.registers(r.mapAs(page, noAccess), full))
			r.Case("read-only memory, with local write", refusal("EFAULT"), r.registers(r.mapAs(page, readOnly), full))
			_, err := libibverbs.RegMr(r.pd.Raw(), nil, 0, full)
			r.want(err != nil, "no memory at all was registered")
		}),
	},
	{
		Name: "memory.paging", Proves: "memory that is paged on demand can be used like any other", Features: []check.Feature{check.Paging},
		Do: "Register memory without AccessOnDemand.",
		Run: on(func(r *rig) {
			r.need(r.attr.ODP.General&libibverbs.IBV_ODP_SUPPORT != 0, "on-demand paging")
			const both = libibverbs.IBV_ODP_SUPPORT_WRITE | libibverbs.IBV_ODP_SUPPORT_READ
			r.need(r.attr.ODP.RC&both == both, "on-demand paging of RDMA writes and reads")
			b := r.mapped(4 * os.Getpagesize())
			r.reaches(keep(r.pd.Register(b, full|ibverbs.AccessOnDemand))(r.T), b)
		}),
	},
	{
		Name: "memory.null", Proves: "a null region takes and gives nothing", Features: []check.Feature{check.Memory},
		Run: on(func(r *rig) {
			mr := offered(r.pd.AllocNullMR())(r.T, "null regions")
			a, b := r.pair()
			fill(b.mr.Bytes()[:64], 1)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Write(1, b.mr.Remote().Sub(0, 64), ibverbs.SendSignaled, mr.Sub(0, 64))
			})
			r.succeed(a.sendCQ, 1)
			r.untouched(b.mr.Bytes(), "with anything but zeros")
		}),
	},
	{
		Name: "memory.dmabuf", Proves: "the device reads and writes a DMA buffer", Features: []check.Feature{check.Devices},
		Run: on(func(r *rig) {
			const n = 16 << 12
			b, fd, err := dmaBuffer(r.T, n)
			if err != nil {
				r.need(r.takesDMABufs(), "regions of DMA buffers")
				r.Skipf("no DMA buffer to try it with (/dev/udmabuf): %v", err)
			}
			r.Reserve(n)
			mr := offered(r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: fd, Length: n, IOVA: 1 << 30}, full))(r.T, "regions of DMA buffers")
			r.reachesBuffer(mr.Remote(), b)
		}),
	},
}

// takesDMABufs reports whether the device may have regions of DMA buffers: it
// refuses a file that is none, but not as something that it does not have.
func (r *rig) takesDMABufs() bool {
	file := must(os.Open(os.DevNull))(r.T)
	r.Close(file)
	mr, err := r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: int(file.Fd()), Length: os.Getpagesize()}, full)
	if err == nil {
		r.Close(mr)
		r.Failf("%s was registered as a DMA buffer", os.DevNull)
	}
	return !errors.Is(err, errors.ErrUnsupported)
}

// protection says what the program may do with memory.
type protection int

const (
	noAccess protection = iota
	readOnly
	readWrite
)

// mapped maps memory, and unmaps it at the end.
func (r *rig) mapped(n int) []byte { return r.mapAs(n, readWrite) }

func (r *rig) mapAs(n int, p protection) []byte {
	r.Reserve(n)
	b := must(mapMemory(n, p))(r.T)
	r.Close(check.Closer(func() error { return unmapMemory(b) }))
	return b
}

// registers returns how registering memory ends.
func (r *rig) registers(b []byte, access ibverbs.AccessFlags) string {
	mr, err := r.pd.Register(b, access)
	if err == nil {
		r.Close(mr)
	}
	return errno(err)
}

// reaches proves that both ends reach a region over b.
func (r *rig) reaches(mr *ibverbs.MR, b []byte) { r.reachesPart(mr, b, 0) }

// reachesPart is reaches for the memory from an offset on.
func (r *rig) reachesPart(mr *ibverbs.MR, b []byte, offset int) {
	r.reachesBuffer(mr.Remote().Sub(uint64(offset), uint64(len(b)-offset)), b[offset:])
	a, c := r.pair()
	n := min(len(b)-offset, landing)
	sent := fill(b[offset:][:n], 31)
	c.receive(1, c.mr.Sub(0, landing))
	a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, mr.Sub(offset, n)) })
	r.succeed(a.sendCQ, 1)
	r.succeed(c.recvCQ, 1)
	r.want(bytes.Equal(sent, c.mr.Bytes()[:n]), "a send from it has other bytes")
	clear(b)
}

// reachesBuffer proves that a peer reaches memory: it writes to b, and reads
// it.
func (r *rig) reachesBuffer(remote ibverbs.RemoteBuffer, b []byte) {
	a, _ := r.pair()
	mine := r.alloc(len(b), full)
	sent := fill(mine.Bytes(), 11)
	a.post(func(s *ibverbs.SendBatch) error { return s.Write(1, remote, ibverbs.SendSignaled, mine.All()) })
	r.succeed(a.sendCQ, 1)
	r.want(bytes.Equal(sent, b), "a write to it has other bytes")
	if !r.reads() {
		return
	}
	there := fill(b, 12)
	a.post(func(s *ibverbs.SendBatch) error { return s.Read(1, remote, ibverbs.SendSignaled, mine.All()) })
	r.succeed(a.sendCQ, 1)
	r.want(bytes.Equal(there, mine.Bytes()), "a read of it has other bytes")
}

// shut adds the case of a write to memory that a peer must not reach.
func (r *rig) shut(remote ibverbs.RemoteBuffer, what string) { r.shutAs(remote, what, remoteAccess) }

func (r *rig) shutAs(remote ibverbs.RemoteBuffer, what string, v check.Verdict) {
	r.Scope(func() {
		a, _ := r.pair()
		a.post(func(s *ibverbs.SendBatch) error {
			return s.Write(1, remote, ibverbs.SendSignaled, a.mr.Sub(0, int(remote.Len)))
		})
		r.Case(what, v, statusName(r.completions(a.sendCQ, 1)[0].Status()))
	})
}
