// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/node"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// The memory of a message belongs to the program again when the send has
// completed, even if no peer acknowledges it.
func TestMemoryAfterUnreliableSend(t *testing.T) {
	for name, kind := range map[string]libibverbs.QpType{"UC": libibverbs.IBV_QPT_UC, "UD": libibverbs.IBV_QPT_UD} {
		t.Run(name, func(t *testing.T) {
			const size, grh, rounds = 1024, 40, 3000
			r := newRig(t)
			sent, received := r.cq(8), r.cq(8)
			from, to := r.qp(kind, sent, 4), r.qp(kind, received, 4)
			r.ready(from, to.QpNum)
			r.ready(to, from.QpNum)
			in, out := r.memory[:4096], r.memory[4096:][:size]
			offset := 0
			var ah *libibverbs.Ah
			if kind == libibverbs.IBV_QPT_UD {
				ah, offset = r.ah(), grh
			}
			for i := range rounds {
				r.postRecv(to, r.part(0, 4096))
				text := bytes.Repeat([]byte{byte(i)}, size)
				copy(out, text)
				r.postSend(from, r.part(4096, size), ah, to.QpNum)
				require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(sent, 1)[0].Status)
				clear(out)
				require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(received, 1)[0].Status)
				require.True(t, bytes.Equal(text, in[offset:][:size]), "message %d is other bytes", i)
			}
		})
	}
}

// A program may destroy an address handle once it has posted what goes there.
func TestDestroyAHBehindDatagrams(t *testing.T) {
	const datagrams = 4000
	r := newRig(t)
	cq := r.cq(datagrams)
	qp := r.qp(libibverbs.IBV_QPT_UD, cq, datagrams)
	r.ready(qp, 0)
	h := r.ah()
	for range datagrams {
		r.postSend(qp, r.part(0, 16), h, qp.QpNum)
	}
	require.NoError(t, libibverbs.DestroyAh(h))
	for _, wc := range r.poll(cq, datagrams) {
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	}
}

// While a thread is between ibv_start_poll and ibv_end_poll, only calls that
// end an object which uses the queue wait for it.
func TestPollingHoldsNobodyElseUp(t *testing.T) {
	for name, end := range map[string]func(*rig, *libibverbs.Qp) error{
		"destroy": func(_ *rig, qp *libibverbs.Qp) error { return libibverbs.DestroyQp(qp) },
		"reset": func(_ *rig, qp *libibverbs.Qp) error {
			return libibverbs.ModifyQp(qp, &libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RESET}, libibverbs.IBV_QP_STATE)
		},
		"resize": func(_ *rig, qp *libibverbs.Qp) error { return libibverbs.ResizeCq(qp.SendCq, 16) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			attr := alloc[libibverbs.CqInitAttrEx]()
			defer free(attr)
			attr.Cqe = 8
			cq, err := libibverbs.CreateCqEx(r.c, attr)
			require.NoError(t, err)
			queue := (*libibverbs.Cq)(unsafe.Pointer(cq))
			qp, other := r.qp(libibverbs.IBV_QPT_UD, queue, 4), r.qp(libibverbs.IBV_QPT_UD, queue, 4)
			r.ready(qp, 0)
			r.postSend(qp, r.part(0, 8), r.ah(), other.QpNum)

			runtime.LockOSThread() // the thread that locks a mutex of C unlocks it
			defer runtime.UnlockOSThread()
			polled := func() bool { return libibverbs.StartPoll(cq, &libibverbs.PollCqAttr{}) == nil }
			for deadline := time.Now().Add(patience); !polled(); {
				require.True(t, time.Now().Before(deadline), "no completion")
			}
			ended := make(chan error, 1)
			go func() { ended <- end(r, other) }()
			require.Eventually(t, func() bool { return running("soft_lock_cq") }, patience, time.Millisecond)
			called := make(chan error, 1)
			go func() { called <- libibverbs.QueryDevice(r.c, &libibverbs.DeviceAttr{}) }()
			select {
			case err := <-called:
				require.NoError(t, err)
			case <-time.After(patience):
				_ = libibverbs.EndPoll(cq)
				require.FailNow(t, "the device is held up")
			}
			require.NoError(t, libibverbs.EndPoll(cq))
			require.NoError(t, <-ended)
		})
	}
}

// Closing a device does not wait, even for events that the program took and
// never acknowledged.
func TestCloseWithEventsNotAcknowledged(t *testing.T) {
	list, _, err := libibverbs.GetDeviceList()
	require.NoError(t, err)
	defer libibverbs.FreeDeviceList(list)
	c, err := libibverbs.OpenDevice(*list)
	require.NoError(t, err)
	channel, err := libibverbs.CreateCompChannel(c)
	require.NoError(t, err)
	r := &rig{t: t, c: c}
	r.pd, err = libibverbs.AllocPd(c)
	require.NoError(t, err)
	cq, err := libibverbs.CreateCq(c, 1, nil, channel, 0)
	require.NoError(t, err)
	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	r.send, r.recv, r.sge = alloc[libibverbs.SendWr](), alloc[libibverbs.RecvWr](), alloc[libibverbs.Sge]()
	qp := r.qp(libibverbs.IBV_QPT_UD, cq, 4)
	r.ready(qp, 0)
	ah := r.ah()
	for range 2 { // one more than the queue has room for
		r.postSend(qp, libibverbs.Sge{}, ah, 0)
	}
	var event libibverbs.AsyncEvent
	require.NoError(t, libibverbs.GetAsyncEvent(c, &event))
	require.Equal(t, libibverbs.IBV_EVENT_CQ_ERR, event.EventType)
	told, _, err := libibverbs.GetCqEvent(channel)
	require.NoError(t, err)
	require.Same(t, cq, told)
	closed := make(chan error, 1)
	go func() { closed <- libibverbs.CloseDevice(c) }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(patience):
		require.FailNow(t, "closing hangs")
	}
}

// A fault may have any numbers: a packet can come never, and no fewer times
// than once.
func TestFaultsOfAllSizes(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   node.Fault
		arrives int
	}{
		"never":      {node.Fault{Delay: math.MaxInt64}, 0},
		"long ago":   {node.Fault{Delay: math.MinInt64}, 1},
		"fewer":      {node.Fault{Duplicate: -3}, 1},
		"fewer late": {node.Fault{Duplicate: -1, Delay: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			sent, received := r.cq(8), r.cq(8)
			from, to := r.qp(libibverbs.IBV_QPT_UD, sent, 4), r.qp(libibverbs.IBV_QPT_UD, received, 4)
			r.ready(from, 0)
			r.ready(to, 0)
			ah := r.ah()
			send := func(length int) {
				r.postRecv(to, r.part(0, 4096))
				r.postSend(from, r.part(4096, length), ah, to.QpNum)
				r.poll(sent, 1)
			}
			Node().SetFaults(func(p *wire.Packet) node.Fault { return tt.fault })
			defer Node().SetFaults(nil)
			send(1)
			if tt.arrives > 0 {
				require.EqualValues(t, 41, r.poll(received, tt.arrives)[0].ByteLen)
			}
			Node().SetFaults(nil)
			send(2)
			require.EqualValues(t, 42, r.poll(received, 1)[0].ByteLen)
		})
	}
}

func TestMapped(t *testing.T) {
	const maps = `00001000-00003000 r--p 00000000 08:01 42 /bin/program
00003000-00004000 rw-p 00000000 00:00 0
00006000-00007000 rw-p 00000000 00:00 0 [heap]
7fff00000000-7fff00001000 ---p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
`
	for name, tt := range map[string]struct {
		from, to    uint64
		read, write bool
	}{
		"within one":       {0x1001, 0x2fff, true, false},
		"all of one":       {0x3000, 0x4000, true, true},
		"two":              {0x1000, 0x4000, true, false},
		"into a gap":       {0x3000, 0x4001, false, false},
		"over a gap":       {0x3800, 0x6800, false, false},
		"from a gap":       {0x5fff, 0x6001, false, false},
		"in a gap":         {0x4000, 0x5000, false, false},
		"before the first": {0, 0x1001, false, false},
		"not readable":     {0x7fff00000000, 0x7fff00001000, false, false},
		"behind the last":  {0xffffffffff700000, 0xffffffffff701000, false, false},
	} {
		require.Equal(t, tt.read, mapped(bufio.NewScanner(strings.NewReader(maps)), tt.from, tt.to, false), name)
		require.Equal(t, tt.write, mapped(bufio.NewScanner(strings.NewReader(maps)), tt.from, tt.to, true), name)
	}
	require.False(t, mapped(bufio.NewScanner(strings.NewReader("what is this?\n")), 0, 1, false))
}

// list is a list of mappings.
type list struct{ *strings.Reader }

func (list) Close() error { return nil }
func (list) Fd() uintptr  { return 42 }

// Memory that a list leaves out is looked for again.
func TestMappingLeftOut(t *testing.T) {
	const without, with = "00001000-00002000 rw-p\n00003000-00004000 rw-p\n", "00001000-00004000 rw-p\n"
	for name, cannot := range map[string]error{"old kernel": syscall.ENOTTY, "forbidden": syscall.EPERM, "nothing": nil} {
		t.Run(name, func(t *testing.T) {
			texts := []string{without, without, with}
			open := func() (mappings, error) {
				if len(texts) == 0 {
					return nil, syscall.EMFILE
				}
				text := texts[0]
				texts = texts[1:]
				return list{strings.NewReader(text)}, nil
			}
			queries := 0
			query := func(uintptr, uint64) (mapping, error) {
				if queries++; cannot == nil && queries == 3 {
					return mapping{0x1000, 0x4000, true, true}, nil
				} else if cannot == nil {
					return mapping{}, syscall.ENOENT
				}
				return mapping{}, cannot
			}
			there, err := found(open, query, 0x2000, 0x3000, true)
			require.NoError(t, err)
			require.True(t, there)
			require.Equal(t, 3, queries)
			_, err = found(open, query, 0x2000, 0x3000, true)
			require.ErrorIs(t, err, syscall.EMFILE)

			there, err = found(func() (mappings, error) { return list{strings.NewReader(without)}, nil }, query, 0x2000, 0x3000, true)
			require.NoError(t, err)
			require.False(t, there)
		})
	}
}

// Where the kernel can be asked, the list is not read, whatever is in it.
func TestMappingsNotListed(t *testing.T) {
	const pages = "00001000-00009000 rw-p\n"
	for name, tt := range map[string]struct {
		there []mapping
		write bool
		want  bool
	}{
		"nothing":            {nil, false, false},
		"all":                {[]mapping{{0x1000, 0x4000, true, true}}, true, true},
		"two":                {[]mapping{{0x2000, 0x2800, true, true}, {0x2800, 0x3000, true, true}}, true, true},
		"the first only":     {[]mapping{{0x2000, 0x2800, true, true}}, false, false},
		"the second only":    {[]mapping{{0x2800, 0x3000, true, true}}, false, false},
		"read-only":          {[]mapping{{0x2000, 0x2800, true, true}, {0x2800, 0x3000, true, false}}, true, false},
		"read-only, to read": {[]mapping{{0x2000, 0x2800, true, true}, {0x2800, 0x3000, true, false}}, false, true},
		"write-only":         {[]mapping{{0x2000, 0x3000, false, true}}, false, false},
		"of no use":          {[]mapping{{0x2000, 0x2000, true, true}}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			query := func(fd uintptr, addr uint64) (mapping, error) {
				require.EqualValues(t, 42, fd)
				for _, m := range tt.there {
					if m.start <= addr && (addr < m.end || m.start == m.end) {
						return m, nil
					}
				}
				return mapping{}, syscall.ENOENT
			}
			open := func() (mappings, error) { return list{strings.NewReader(pages)}, nil }
			there, err := found(open, query, 0x2000, 0x3000, tt.write)
			require.NoError(t, err)
			require.Equal(t, tt.want, there)
		})
	}
}

// What the kernel answers is what its list says, of memory of every kind.
func TestQuery(t *testing.T) {
	maps, err := openMappings()
	require.NoError(t, err)
	defer maps.Close()
	if _, err := query(maps.Fd(), 0); errors.Is(err, syscall.ENOTTY) {
		t.Skip("Linux before 6.11 cannot be asked for a mapping")
	}
	const pages = 12
	memory, err := syscall.Mmap(-1, 0, pages*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(memory)) }()
	for i, protection := range []int{3: syscall.PROT_READ, 4: syscall.PROT_NONE, 6: syscall.PROT_WRITE, 8: syscall.PROT_READ | syscall.PROT_EXEC, 10: 0} {
		if protection != 0 || i == 4 || i == 10 {
			require.NoError(t, syscall.Mprotect(memory[i*4096:][:4096], protection))
		}
	}
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	for from := range pages {
		for to := from + 1; to <= pages; to++ {
			for _, write := range []bool{false, true} {
				text, err := os.ReadFile("/proc/self/maps")
				require.NoError(t, err)
				first, end := start+uint64(from)*4096+1, start+uint64(to)*4096
				want := mapped(bufio.NewScanner(bytes.NewReader(text)), first, end, write)
				got, err := covered(func(addr uint64) (mapping, error) { return query(maps.Fd(), addr) }, first, end, write)
				require.NoError(t, err)
				require.Equal(t, want, got, "pages %d to %d, to write: %v", from, to, write)
			}
		}
	}
	_, err = query(maps.Fd(), 1)
	require.ErrorIs(t, err, syscall.ENOENT)
}

// A region's registration, in a program with many mappings.
func BenchmarkRegisterAmong30000Mappings(b *testing.B) {
	r := newRig(b)
	const pages = 60_000
	memory, err := syscall.Mmap(-1, 0, pages*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(b, err)
	defer func() { require.NoError(b, syscall.Munmap(memory)) }()
	for i := 0; i < pages; i += 2 {
		require.NoError(b, syscall.Mprotect(memory[i*4096:][:4096], syscall.PROT_READ))
	}
	for b.Loop() {
		m, err := libibverbs.RegMr(r.pd, unsafe.Pointer(&memory[4096]), 4096, libibverbs.IBV_ACCESS_LOCAL_WRITE)
		require.NoError(b, err)
		require.NoError(b, libibverbs.DeregMr(m))
	}
}

// A fault function that ends its goroutine, as testing.T.FailNow does, leaves
// the device as it is.
func TestFaultFunctionEnds(t *testing.T) {
	r := newRig(t)
	sent, received := r.cq(8), r.cq(8)
	from, to := r.qp(libibverbs.IBV_QPT_RC, sent, 4), r.qp(libibverbs.IBV_QPT_RC, received, 4)
	r.ready(from, to.QpNum)
	r.ready(to, from.QpNum)
	Node().SetFaults(func(*wire.Packet) node.Fault {
		runtime.Goexit()
		return node.Fault{}
	})
	defer Node().SetFaults(nil)
	r.postRecv(to, r.part(0, 4096))
	r.postSend(from, r.part(4096, 100), nil, 0)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(sent, 1)[0].Status)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(received, 1)[0].Status)
}

// Drivers arm a queue without a channel, too; nothing comes of it.
func TestNotifyWithoutChannel(t *testing.T) {
	r := newRig(t)
	cq := r.cq(8)
	qp := r.qp(libibverbs.IBV_QPT_UD, cq, 4)
	r.ready(qp, 0)
	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	r.postSend(qp, r.part(0, 8), r.ah(), 0)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(cq, 1)[0].Status)
}
