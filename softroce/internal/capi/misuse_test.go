// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// oneOfEach makes an object of each kind that the device has.
func oneOfEach(t *testing.T) []any {
	t.Helper()
	c, err := verbs.OpenDevice(self().structs[0])
	require.Zero(t, err)
	pd, err := verbs.AllocPd(c)
	require.Zero(t, err)
	td, err := verbs.AllocTd(c, &libibverbs.TdInitAttr{})
	require.Zero(t, err)
	parent, err := verbs.AllocParentDomain(c, &libibverbs.ParentDomainInitAttr{Pd: pd, Td: td})
	require.Zero(t, err)
	ch, err := verbs.CreateCompChannel(c)
	require.Zero(t, err)
	cq, err := verbs.CreateCq(c, 4, 0, ch, 0)
	require.Zero(t, err)
	srq, err := verbs.CreateSrq(pd, &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}})
	require.Zero(t, err)
	qp, err := verbs.CreateQp(pd, &libibverbs.QpInitAttr{SendCq: cq, RecvCq: cq, QpType: libibverbs.IBV_QPT_UD})
	require.Zero(t, err)
	mw, err := verbs.AllocMw(parent, libibverbs.IBV_MW_TYPE_2)
	require.Zero(t, err)
	var buf *libibverbs.Buf
	memory, err := verbs.AllocBuf(pd, 4096, &buf)
	require.Zero(t, err)
	mr, err := verbs.RegBufMr(pd, buf, uintptr(memory), 4096, libibverbs.IBV_ACCESS_LOCAL_WRITE)
	require.Zero(t, err)
	dm, err := verbs.AllocDm(c, &libibverbs.AllocDmAttr{Length: 100})
	require.Zero(t, err)
	_, err = verbs.RegDmMr(pd, dm, 0, 100, libibverbs.IBV_ACCESS_ZERO_BASED)
	require.Zero(t, err)
	dmah, err := verbs.AllocDmah(c, &libibverbs.DmahInitAttr{CompMask: libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH})
	require.Zero(t, err)
	_, err = verbs.RegMrEx(pd, &libibverbs.MrInitAttr{
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_DMAH), Addr: memory, Length: 4096, Dmah: dmah,
	})
	require.Zero(t, err)
	_, err = verbs.AllocNullMr(pd)
	require.Zero(t, err)
	to := &libibverbs.AhAttr{IsGlobal: 1, PortNum: 1}
	entry, err := locked(c, func(d *engine.Device) (libibverbs.GidEntry, error) { return d.GID(1, 0) })
	require.Zero(t, err)
	*to.Grh.Dgid.Raw() = *entry.Gid.Raw()
	ah, err := verbs.CreateAh(pd, to)
	require.Zero(t, err)
	counter, err := verbs.CreateCompCntr(c, &libibverbs.CompCntrInitAttr{})
	require.Zero(t, err)
	require.Zero(t, verbs.QpAttachCompCntr(qp, counter, &libibverbs.QpAttachCompCntrAttr{OpMask: libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND}))
	return []any{c, pd, ch, cq, srq, qp, mw, buf, mr, ah, td, parent, counter, dm, dmah}
}

// notCalled are functions that free whatever they are given.
var notCalled = []string{"FreeDeviceList"}

// ends reports whether a function ends objects.
func ends(name string) bool {
	return slices.ContainsFunc([]string{"Destroy", "Dealloc", "Dereg", "Close", "FreeBuf", "FreeDm"}, func(begin string) bool {
		return strings.HasPrefix(name, begin)
	})
}

// held counts the objects of the program.
func (l *library) held() map[string]int {
	l.Lock()
	defer l.Unlock()
	return map[string]int{
		"contexts": len(l.contexts), "PDs": len(l.pds), "TDs": len(l.tds), "MRs": len(l.mrs), "MWs": len(l.mws), "DMs": len(l.dms), "DMA handles": len(l.dmahs), "channels": len(l.channels),
		"CQs": len(l.cqs), "SRQs": len(l.srqs), "QPs": len(l.qps), "AHs": len(l.ahs), "bufs": len(l.bufs), "counters": len(l.counters),
		"CQs by object": len(l.byCQ), "SRQs by object": len(l.bySRQ), "QPs by object": len(l.byQP),
	}
}

// roots returns what does not go with anything else.
func (l *library) roots() (contexts map[*libibverbs.Context]bool, bufs map[*libibverbs.Buf]bool) {
	l.Lock()
	defer l.Unlock()
	contexts, bufs = map[*libibverbs.Context]bool{}, map[*libibverbs.Buf]bool{}
	for c := range l.contexts {
		contexts[c] = true
	}
	for b := range l.bufs {
		bufs[b] = true
	}
	return contexts, bufs
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Every function is called with nonsense for the objects and for the rest, and
// with real objects and nonsense for the rest. None panics or hangs, and what
// is left of them goes with the device that a program has opened.
func TestMisuse(t *testing.T) {
	self().held() // makes the node
	before, files := self().held(), descriptors(t)
	contexts, _ := self().roots()
	for _, n := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64} {
		real := oneOfEach(t)
		event := &libibverbs.AsyncEvent{}
		for _, known := range [][]any{{event}, append(real, event)} { // an event of no object
			fill := misuse.Filled(n, known...)
			functions := reflect.ValueOf(verbs)
			for i := range functions.NumField() {
				name, f := functions.Type().Field(i).Name, functions.Field(i)
				if f.IsNil() || slices.Contains(notCalled, name) || ends(name) && len(known) > 1 { // real ones are needed still
					continue
				}
				var in []reflect.Value
				for j := range f.Type().NumIn() {
					in = append(in, fill(f.Type().In(j)))
				}
				require.NotPanics(t, func() { f.Call(in) }, "%s with %d", name, n)
			}
		}
		opened, bufs := self().roots()
		for c := range opened {
			if !contexts[c] {
				require.Zero(t, verbs.CloseDevice(c))
			}
		}
		for b := range bufs {
			verbs.FreeBuf(b)
		}
	}
	require.Equal(t, before, self().held())
	require.LessOrEqual(t, descriptors(t), files) // what tests before have left may be closed only now
}

// A program's structs may be shorter or longer than those here, if it was
// compiled with other headers.
func TestSizesOfOtherVersions(t *testing.T) {
	c, err := verbs.OpenDevice(self().structs[0])
	require.Zero(t, err)
	defer func() { require.Zero(t, verbs.CloseDevice(c)) }()
	var whole, first libibverbs.PortAttr
	require.Zero(t, verbs.QueryPort(c, 1, &whole, math.MaxUint64))
	require.Equal(t, libibverbs.IBV_PORT_ACTIVE, whole.State)
	require.NotZero(t, whole.ActiveSpeedEx)
	require.Zero(t, verbs.QueryPort(c, 1, &first, uint64(unsafe.Offsetof(first.ActiveSpeedEx))))
	whole.ActiveSpeedEx = 0
	require.Equal(t, whole, first)
}

// Closing a device takes its objects along, also a queue pair that is in a
// group.
func TestCloseWithMember(t *testing.T) {
	before := self().held()
	c, err := verbs.OpenDevice(self().structs[0])
	require.Zero(t, err)
	pd, err := verbs.AllocPd(c)
	require.Zero(t, err)
	cq, err := verbs.CreateCq(c, 4, 0, nil, 0)
	require.Zero(t, err)
	qp, err := verbs.CreateQp(pd, &libibverbs.QpInitAttr{SendCq: cq, RecvCq: cq, QpType: libibverbs.IBV_QPT_UD})
	require.Zero(t, err)
	var group libibverbs.Gid
	*group.Raw() = [16]byte{10: 0xFF, 11: 0xFF, 12: 224, 15: 99}
	require.Zero(t, verbs.AttachMcast(qp, &group, 0))
	require.Zero(t, verbs.CloseDevice(c))
	require.Equal(t, before, self().held())
	require.Zero(t, members(t, netip.MustParseAddr("224.0.0.99")))
}

// What was ended is no object any more: every function refuses it, whatever
// else it gets.
func TestUseAfterEnd(t *testing.T) {
	gone := oneOfEach(t)
	c := gone[0].(*libibverbs.Context)
	require.Zero(t, verbs.CloseDevice(c))
	before := self().held()
	// The memory is C's to use again: here it is no object's.
	pd, qp, cq := gone[1].(*libibverbs.Pd), gone[5].(*libibverbs.Qp), gone[3].(*libibverbs.Cq)
	for name, err := range map[string]error{
		"close":   verbs.CloseDevice(c),
		"dealloc": verbs.DeallocPd(pd),
		"destroy": verbs.DestroyQp(qp),
		"modify":  verbs.ModifyQp(qp, &libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE),
		"resize":  verbs.ResizeCq(cq, 8),
		"alloc":   failed(verbs.AllocPd(c)),
		"channel": failed(verbs.CreateCompChannel(c)),
		"queue":   failed(verbs.CreateCq(c, 4, 0, nil, 0)),
		"td":      verbs.DeallocTd(gone[10].(*libibverbs.Td)),
		"counter": verbs.DestroyCompCntr(gone[12].(*libibverbs.CompCntr)),
		"read":    verbs.ReadCompCntr(gone[12].(*libibverbs.CompCntr), new(uint64)),
		"parent":  verbs.DeallocPd(gone[11].(*libibverbs.Pd)),
		"mw":      failed(verbs.AllocMw(pd, libibverbs.IBV_MW_TYPE_1)),
		"dm":      failed(verbs.AllocDm(c, &libibverbs.AllocDmAttr{Length: 8})),
		"free":    verbs.FreeDm(gone[13].(*libibverbs.Dm)),
		"handle":  verbs.DeallocDmah(gone[14].(*libibverbs.Dmah)),
		"dmah":    failed(verbs.AllocDmah(c, &libibverbs.DmahInitAttr{CompMask: withHint})),
		"import":  failed(verbs.ImportDm(c, 1)),
		"null":    failed(verbs.AllocNullMr(pd)),
		"advise":  verbs.AdviseMr(pd, libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, 0, &libibverbs.Sge{}, 1),
	} {
		require.Equal(t, "invalid argument", err.Error(), name)
	}
	require.Equal(t, before, self().held())
	verbs.FreeBuf(gone[7].(*libibverbs.Buf))
}

func failed[T any, E error](_ T, err E) error { return err }
