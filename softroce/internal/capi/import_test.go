// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// imported returns a context that shares r's objects, and an import of r's
// domain and of r's region.
func (r *rig) imported() (*libibverbs.Context, *libibverbs.Pd, *libibverbs.Mr) {
	r.t.Helper()
	fd, err := syscall.Dup(int(r.c.CmdFd))
	require.NoError(r.t, err)
	c, err := libibverbs.ImportDevice(int32(fd))
	require.NoError(r.t, err)
	pd, err := libibverbs.ImportPd(c, r.pd.Handle)
	require.NoError(r.t, err)
	mr, err := libibverbs.ImportMr(pd, r.mr.Handle)
	require.NoError(r.t, err)
	require.Equal(r.t, [...]uint32{r.mr.Lkey, r.mr.Rkey, r.mr.Handle}, [...]uint32{mr.Lkey, mr.Rkey, mr.Handle})
	require.Equal(r.t, r.mr.Length, mr.Length)
	require.Nil(r.t, mr.Addr)
	return c, pd, mr
}

// importer returns a rig with imports of r's objects. It does not close its
// context.
func (r *rig) importer() *rig {
	r.t.Helper()
	i := *r
	i.c, i.pd, i.mr = r.imported()
	return &i
}

// Queue pairs of an imported domain use regions of the original, and the other
// way round.
func TestImportedDomain(t *testing.T) {
	r := newRig(t)
	before := self().held()
	i := r.importer()
	defer func() {
		require.NoError(t, libibverbs.CloseDevice(i.c))
		require.Equal(t, before, self().held())
	}()
	sent, received := i.cq(8), r.cq(8)
	from, to := i.qp(libibverbs.IBV_QPT_RC, sent, 4), r.qp(libibverbs.IBV_QPT_RC, received, 4)
	defer func() { require.NoError(t, libibverbs.DestroyCq(received)) }()
	defer func() { require.NoError(t, libibverbs.DestroyQp(to)) }()
	i.ready(from, to.QpNum)
	r.ready(to, from.QpNum)
	copy(r.memory[4096:], "hello")
	r.postRecv(to, r.part(0, 64))
	i.postSend(from, i.part(4096, 64), nil, 0)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, i.poll(sent, 1)[0].Status)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(received, 1)[0].Status)
	require.True(t, bytes.HasPrefix(r.memory, []byte("hello")))

	require.NoError(t, libibverbs.DestroyQp(from))
	libibverbs.UnimportMr(i.mr)
	libibverbs.UnimportPd(i.pd)
	libibverbs.UnimportPd(r.pd) // is no import
	require.NoError(t, libibverbs.QueryDevice(i.c, &libibverbs.DeviceAttr{}))
	ah := r.ah()
	require.NoError(t, libibverbs.DestroyAh(ah))
}

// What is no export of an open device, or of the same device, cannot be
// imported.
func TestImportRefused(t *testing.T) {
	r, other := newRig(t), newRig(t)
	i := r.importer()
	defer func() { require.NoError(t, libibverbs.CloseDevice(i.c)) }()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	foreign, err := memoryFile(fileText + "1\n")
	require.NoError(t, err)
	defer syscall.Close(foreign)
	for name, tt := range map[string]struct {
		fd   int
		want error
	}{
		"no descriptor":      {-1, syscall.EBADF},
		"other file":         {int(null.Fd()), syscall.ENODEV},
		"of another process": {foreign, syscall.EOPNOTSUPP},
	} {
		_, err := libibverbs.ImportDevice(int32(tt.fd))
		require.ErrorIs(t, err, tt.want, name)
	}
	_, err = syscall.Write(foreign, []byte{1})
	require.ErrorIs(t, err, syscall.EPERM, "the file is sealed")

	domain, err := libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	parent, err := r.parentDomain(domain, nil)
	require.NoError(t, err)
	for name, err := range map[string]error{
		"domain of another file":    failed(libibverbs.ImportPd(i.c, other.pd.Handle)),
		"domain that was never":     failed(libibverbs.ImportPd(i.c, 1<<31)),
		"region of another file":    failed(libibverbs.ImportMr(i.pd, other.mr.Handle)),
		"region of another domain":  failed(libibverbs.ImportMr(domain, r.mr.Handle)),
		"region of the parent's":    failed(libibverbs.ImportMr(parent, r.mr.Handle)),
		"region that was never":     failed(libibverbs.ImportMr(i.pd, 1<<31)),
		"change of a region":        libibverbs.ReregMr(i.mr, libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, nil, 0, 0),
		"parent domain of a parent": failed(i.parentDomain(parent, nil)),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
}

// A region that was registered again in another domain can be imported there,
// and no longer in the domain that it has left: not even after an import from
// before.
func TestImportAfterRereg(t *testing.T) {
	r := newRig(t)
	i := r.importer()
	defer func() { require.NoError(t, libibverbs.CloseDevice(i.c)) }()
	domain, err := libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	there, err := libibverbs.ImportPd(i.c, domain.Handle)
	require.NoError(t, err)
	require.NoError(t, libibverbs.ReregMr(r.mr, libibverbs.IBV_REREG_MR_CHANGE_PD|libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION,
		domain, start(r.memory), 4096, 0))
	for range 10 { // among the region and its imports, an import takes any
		for name, p := range map[string]*libibverbs.Pd{"imported": i.pd, "original": r.pd} {
			_, err := libibverbs.ImportMr(p, r.mr.Handle)
			require.ErrorIs(t, err, syscall.EINVAL, name)
		}
		for _, p := range []*libibverbs.Pd{there, domain} {
			mr, err := libibverbs.ImportMr(p, r.mr.Handle)
			require.NoError(t, err)
			require.Equal(t, [...]uint64{4096, uint64(r.mr.Lkey), uint64(r.mr.Rkey)}, [...]uint64{mr.Length, uint64(mr.Lkey), uint64(mr.Rkey)})
			defer libibverbs.UnimportMr(mr)
		}
	}
	libibverbs.UnimportMr(i.mr)
}

// After the end of an original or an import, the other can only be given up.
func TestEndOfOriginal(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r, i *rig) (rest *rig){
		"by its owner": func(t *testing.T, r, i *rig) *rig {
			require.NoError(t, libibverbs.DeregMr(r.mr))
			require.NoError(t, libibverbs.DeallocPd(r.pd), "imports do not count")
			return i
		},
		"by its importer": func(t *testing.T, r, i *rig) *rig {
			require.NoError(t, libibverbs.DeregMr(i.mr))
			require.NoError(t, libibverbs.DeallocPd(i.pd))
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := self().held()
			r := newRig(t)
			i := r.importer()
			rest := end(t, r, i)
			for call, err := range map[string]error{
				"dereg":   libibverbs.DeregMr(rest.mr),
				"rereg":   libibverbs.ReregMr(rest.mr, libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, nil, 0, 0),
				"dealloc": libibverbs.DeallocPd(rest.pd),
				"window":  failed(libibverbs.AllocMw(rest.pd, libibverbs.IBV_MW_TYPE_1)),
				"parent":  failed(rest.parentDomain(rest.pd, nil)),
				"import":  failed(libibverbs.ImportMr(rest.pd, rest.mr.Handle)),
				"again":   failed(libibverbs.ImportPd(rest.c, rest.pd.Handle)),
			} {
				require.Error(t, err, call)
			}
			libibverbs.UnimportMr(rest.mr)
			libibverbs.UnimportPd(rest.pd)
			require.NoError(t, libibverbs.CloseDevice(i.c))
			after := self().held()
			require.Equal(t, before["PDs"], after["PDs"])
			require.Equal(t, before["MRs"], after["MRs"])
		})
	}
}

// The exporter may close its device before the importer does: what the importer
// uses lasts until then.
func TestExporterClosesFirst(t *testing.T) {
	before, files := self().held(), descriptors(t)
	r := openRig(t)
	i := r.importer()
	cq := i.cq(8)
	qp := i.qp(libibverbs.IBV_QPT_RC, cq, 4)
	i.ready(qp, qp.QpNum)
	part := i.part(0, 8)
	require.NoError(t, libibverbs.CloseDevice(r.c))
	i.postSend(qp, part, nil, 0)
	require.Equal(t, libibverbs.IBV_WC_LOC_PROT_ERR, i.poll(cq, 1)[0].Status, "the exporter's region is gone")
	require.Error(t, libibverbs.DeregMr(i.mr))
	qpAttr, srqAttr := alloc[libibverbs.QpInitAttr](), alloc[libibverbs.SrqInitAttr]()
	defer free(qpAttr)
	defer free(srqAttr)
	qpAttr.QpType, srqAttr.Attr = libibverbs.IBV_QPT_RC, libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}
	for call, err := range map[string]error{
		"queue pair":           failed(libibverbs.CreateQp(r.pd, qpAttr)),
		"shared receive queue": failed(libibverbs.CreateSrq(r.pd, srqAttr)),
		"region":               failed(libibverbs.RegMr(r.pd, start(r.memory), 8, 0)),
		"window":               failed(libibverbs.AllocMw(r.pd, libibverbs.IBV_MW_TYPE_1)),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, call)
	}
	another := i.qp(libibverbs.IBV_QPT_RC, cq, 4)
	require.NoError(t, libibverbs.DestroyQp(another), "the domain is in use, and so still there")
	require.ErrorIs(t, libibverbs.DeallocPd(i.pd), syscall.EBUSY)
	require.NoError(t, libibverbs.CloseDevice(i.c))
	require.Equal(t, before, self().held())
	require.LessOrEqual(t, descriptors(t), files)
}

// The end of an import leaves contexts alone that were opened after the
// exporter was closed, although C's allocator prefers memory that was freed
// before.
func TestExporterClosesBeforeOthersOpen(t *testing.T) {
	runtime.LockOSThread() // the allocator keeps freed memory for each thread
	defer runtime.UnlockOSThread()
	before := self().held()
	r := openRig(t)
	i := r.importer()
	_, err := libibverbs.RegMr(i.pd, start(r.memory), uint64(len(r.memory)), 0) // keeps the domain
	require.NoError(t, err)
	warm := make([]*libibverbs.Context, 8) // more than the thread keeps
	for n := range warm {
		warm[n] = openContext(t)
	}
	for _, c := range warm {
		require.NoError(t, libibverbs.CloseDevice(c))
	}
	require.NoError(t, libibverbs.CloseDevice(r.c))
	var pds []*libibverbs.Pd
	for range 32 {
		pd, err := libibverbs.AllocPd(openContext(t))
		require.NoError(t, err)
		pds = append(pds, pd)
	}
	require.NoError(t, libibverbs.CloseDevice(i.c))
	for _, pd := range pds {
		c := pd.Context
		require.NoError(t, libibverbs.DeallocPd(pd), "the context's objects are there")
		require.NoError(t, libibverbs.CloseDevice(c))
	}
	require.Equal(t, before, self().held())
}

// entangled opens three contexts of which each uses objects of the one before:
// the second has a region of the first's domain, and the third has a window to
// that region.
func entangled(t *testing.T) [3]*libibverbs.Context {
	r := openRig(t)
	second, third := r.importer(), r.importer()
	var err error
	second.mr, err = libibverbs.RegMr(second.pd, start(r.memory), 4096, libibverbs.IBV_ACCESS_LOCAL_WRITE|libibverbs.IBV_ACCESS_MW_BIND)
	require.NoError(t, err)
	third.mr, err = libibverbs.ImportMr(third.pd, second.mr.Handle)
	require.NoError(t, err)
	cq := third.cq(8)
	qp := third.qp(libibverbs.IBV_QPT_RC, cq, 4)
	third.ready(qp, qp.QpNum)
	mw, err := libibverbs.AllocMw(third.pd, libibverbs.IBV_MW_TYPE_1)
	require.NoError(t, err)
	bind := alloc[libibverbs.MwBind]()
	defer free(bind)
	bind.SendFlags = libibverbs.IBV_SEND_SIGNALED
	bind.BindInfo = libibverbs.MwBindInfo{Mr: third.mr, Addr: uint64(uintptr(start(r.memory))), Length: 64}
	require.NoError(t, libibverbs.BindMw(qp, mw, bind))
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, third.poll(cq, 1)[0].Status)
	require.ErrorIs(t, libibverbs.DeregMr(second.mr), syscall.EBUSY)
	return [...]*libibverbs.Context{r.c, second.c, third.c}
}

// All objects of contexts that use each other's go with the last context, in
// whatever order the program closes the contexts.
func TestContextsCloseInAnyOrder(t *testing.T) {
	for name, order := range map[string][3]int{
		"first, second, third": {0, 1, 2}, "first, third, second": {0, 2, 1}, "second, first, third": {1, 0, 2},
		"second, third, first": {1, 2, 0}, "third, first, second": {2, 0, 1}, "third, second, first": {2, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before, files := self().held(), descriptors(t)
			contexts := entangled(t)
			for _, n := range order {
				require.NoError(t, libibverbs.CloseDevice(contexts[n]))
			}
			require.Equal(t, before, self().held())
			require.LessOrEqual(t, descriptors(t), files)
		})
	}
}

func TestContextsCloseAtOnce(t *testing.T) {
	before := self().held()
	for range 50 {
		var all sync.WaitGroup
		var failures [3]error
		for n, c := range entangled(t) {
			all.Go(func() { failures[n] = libibverbs.CloseDevice(c) })
		}
		all.Wait()
		require.Equal(t, [3]error{}, failures)
		require.Equal(t, before, self().held())
	}
}

// Objects of a closed context that importers keep cannot be used any more
// through the closed context.
func TestDomainOfClosedContext(t *testing.T) {
	r := openRig(t)
	i := r.importer()
	defer func() { require.NoError(t, libibverbs.CloseDevice(i.c)) }()
	_, err := libibverbs.RegMr(i.pd, start(r.memory), uint64(len(r.memory)), 0) // keeps the domain
	require.NoError(t, err)
	require.NoError(t, libibverbs.CloseDevice(r.c))
	srq := alloc[libibverbs.SrqInitAttr]()
	defer free(srq)
	srq.Attr = libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}
	qp := alloc[libibverbs.QpInitAttr]()
	defer free(qp)
	qp.QpType = libibverbs.IBV_QPT_RC
	for call, err := range map[string]error{
		"region":               failed(libibverbs.RegMr(r.pd, start(r.memory), 64, 0)),
		"window":               failed(libibverbs.AllocMw(r.pd, libibverbs.IBV_MW_TYPE_1)),
		"address handle":       failed(libibverbs.CreateAh(r.pd, &libibverbs.AhAttr{PortNum: 1, IsGlobal: 1})),
		"shared receive queue": failed(libibverbs.CreateSrq(r.pd, srq)),
		"queue pair":           failed(libibverbs.CreateQp(r.pd, qp)),
		"parent domain":        failed(r.parentDomain(r.pd, nil)),
		"import":               failed(libibverbs.ImportMr(r.pd, i.mr.Handle)),
		"closing":              libibverbs.CloseDevice(r.c),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, call)
	}
}

// Many threads import and end imports while others create objects with them.
func TestConcurrentImports(t *testing.T) {
	const threads, rounds = 8, 50
	r := newRig(t)
	before := self().held()
	size := r.attrEx().MaxDmSize
	var dm atomic.Uint32 // handle of device memory that comes and goes
	var all, owner sync.WaitGroup
	done := make(chan struct{})
	failures := make(chan error, threads)
	owner.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			d, err := libibverbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: size})
			if err != nil { // imports have the bytes
				continue
			}
			dm.Store(d.Handle)
			for errors.Is(libibverbs.FreeDm(d), syscall.EBUSY) { // until importers close
			}
			libibverbs.UnimportDm(d) // if an importer has freed it
		}
	})
	for range threads {
		all.Go(func() {
			for range rounds {
				if err := importOnce(r, dm.Load()); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(done)
	owner.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
	require.Equal(t, before, self().held())
	require.NoError(t, libibverbs.FreeDm(r.dm(size)), "the device has all of its bytes")
}

// importOnce imports r's objects, and ends the imports, in a way that leaves
// objects to the end of the context.
func importOnce(r *rig, dm uint32) error {
	fd, err := syscall.Dup(int(r.c.CmdFd))
	if err != nil {
		return err
	}
	c, err := libibverbs.ImportDevice(int32(fd))
	if err != nil {
		return err
	}
	pd, err := libibverbs.ImportPd(c, r.pd.Handle)
	if err != nil {
		return err
	}
	if _, err := libibverbs.ImportMr(pd, r.mr.Handle); err != nil {
		return err
	}
	if _, err := libibverbs.AllocMw(pd, libibverbs.IBV_MW_TYPE_1); err != nil {
		return err
	}
	h, err := libibverbs.AllocDmah(c, &libibverbs.DmahInitAttr{CompMask: withHint})
	if err != nil {
		return err
	}
	if _, err := r.dmahRegion(pd, h, libibverbs.IBV_ACCESS_LOCAL_WRITE); err != nil {
		return err
	}
	// The device memory may have been freed meanwhile, by its owner or by
	// another importer.
	if imported, err := libibverbs.ImportDm(c, dm); err == nil {
		if _, err := libibverbs.RegDmMr(pd, imported, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED); err != nil {
			_ = libibverbs.FreeDm(imported)
		}
	}
	return libibverbs.CloseDevice(c)
}

// An import of device memory has its bytes and regions of its own.
func TestImportDM(t *testing.T) {
	r, other := newRig(t), newRig(t)
	before := self().held()
	i := r.importer()
	dm := r.dm(64)
	imported, err := libibverbs.ImportDm(i.c, dm.Handle)
	require.NoError(t, err)
	copy(r.memory, "hello...")
	require.NoError(t, libibverbs.MemcpyToDm(dm, 8, start(r.memory), 8))
	require.NoError(t, libibverbs.MemcpyFromDm(start(r.memory[64:]), imported, 8, 8))
	require.Equal(t, "hello...", string(r.memory[64:72]))
	require.ErrorIs(t, libibverbs.MemcpyFromDm(start(r.memory), imported, 64, 4), syscall.EFAULT)
	for name, err := range map[string]error{
		"of another file":   failed(libibverbs.ImportDm(other.c, dm.Handle)),
		"that was never":    failed(libibverbs.ImportDm(i.c, 1<<31)),
		"that is a domain":  failed(libibverbs.ImportDm(i.c, r.pd.Handle)),
		"that is a region":  failed(libibverbs.ImportDm(i.c, r.mr.Handle)),
		"of another domain": failed(libibverbs.RegDmMr(other.pd, imported, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED)),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}

	mr, err := libibverbs.RegDmMr(i.pd, imported, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED)
	require.NoError(t, err)
	require.ErrorIs(t, libibverbs.FreeDm(dm), syscall.EBUSY)
	require.ErrorIs(t, libibverbs.FreeDm(imported), syscall.EBUSY)
	libibverbs.UnimportDm(dm) // is no import
	libibverbs.UnimportDm(imported)
	require.ErrorIs(t, libibverbs.FreeDm(dm), syscall.EBUSY, "the region is there")
	require.NoError(t, libibverbs.DeregMr(mr))
	require.NoError(t, libibverbs.FreeDm(dm))
	require.NoError(t, libibverbs.CloseDevice(i.c))
	require.Equal(t, before, self().held())
}

// After the end of an original or an import of device memory, the other can
// only be given up. Its bytes stay until then.
func TestEndOfOriginalDM(t *testing.T) {
	r := newRig(t)
	before := self().held()
	all := r.attrEx().MaxDmSize
	for name, ofImporter := range map[string]bool{"by its owner": false, "by its importer": true} {
		i := r.importer()
		dm := r.dm(all)
		rest, err := libibverbs.ImportDm(i.c, dm.Handle)
		require.NoError(t, err, name)
		if ofImporter {
			dm, rest = rest, dm
		}
		require.NoError(t, libibverbs.FreeDm(dm), name)
		handle := rest.Handle
		for call, err := range map[string]error{
			"free":     libibverbs.FreeDm(rest),
			"register": failed(libibverbs.RegDmMr(r.pd, rest, 0, 8, libibverbs.IBV_ACCESS_ZERO_BASED)),
			"import":   failed(libibverbs.ImportDm(i.c, handle)),
		} {
			require.ErrorIs(t, err, syscall.EINVAL, "%s, %s", name, call)
		}
		require.NoError(t, libibverbs.MemcpyToDm(rest, 0, start(r.memory), 64), name)
		_, err = libibverbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: 1})
		require.ErrorIs(t, err, syscall.ENOMEM, "%s: the bytes are still there", name)
		libibverbs.UnimportDm(rest)
		require.NoError(t, libibverbs.FreeDm(r.dm(all)), "%s: the device has its bytes back", name)
		require.NoError(t, libibverbs.CloseDevice(i.c))
		require.Equal(t, before, self().held(), name)
	}
}

// Device memory with regions of an importer lasts until the importer closes,
// whichever context closes first.
func TestContextsWithDMClose(t *testing.T) {
	for name, exporterFirst := range map[string]bool{"exporter first": true, "importer first": false} {
		t.Run(name, func(t *testing.T) {
			before := self().held()
			r := openRig(t)
			i := r.importer()
			dm := r.dm(64)
			imported, err := libibverbs.ImportDm(i.c, dm.Handle)
			require.NoError(t, err)
			_, err = libibverbs.RegDmMr(i.pd, imported, 0, 64, libibverbs.IBV_ACCESS_ZERO_BASED)
			require.NoError(t, err)
			first, last := i.c, r.c
			if exporterFirst {
				first, last = last, first
			}
			require.NoError(t, libibverbs.CloseDevice(first))
			if exporterFirst {
				require.NoError(t, libibverbs.MemcpyToDm(imported, 0, start(i.memory), 64))
			}
			require.NoError(t, libibverbs.CloseDevice(last))
			require.Equal(t, before, self().held())
			again := newRig(t)
			require.NoError(t, libibverbs.FreeDm(again.dm(again.attrEx().MaxDmSize)), "all of the memory is free")
		})
	}
}

// A device may lack imports.
func TestNoImports(t *testing.T) {
	if !limitedTo(t, "imports=0") {
		return
	}
	r := newRig(t)
	_, err := libibverbs.ImportDevice(r.c.CmdFd)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = libibverbs.ImportPd(r.c, r.pd.Handle)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = libibverbs.ImportMr(r.pd, r.mr.Handle)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = libibverbs.ImportDm(r.c, r.dm(64).Handle)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
}
