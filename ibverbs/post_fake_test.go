//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// fakeAH returns an address handle that no device knows.
func fakeAH() *AH {
	ah := &AH{raw: &libibverbs.Ah{}}
	ah.object.InitUnlisted("fake AH")
	return ah
}

type call = fakeverbs.Call

// Every request becomes the right ibv_wr_* calls, with its fields where they
// belong.
func TestExtendedPost(t *testing.T) {
	mr := fakeMR(t, 4096, 0x55)
	copy(mr.bytes, "abcdefgh")
	at := func(offset int) uint64 { return mr.addr() + uint64(offset) }
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 512}
	be := uint64(libibverbs.NewBe32(0x01020304))
	one := call{Op: fakeverbs.SGE, Args: [6]uint64{0x55, at(10), 20}}
	segment := mr.Sub(10, 20)
	result := mr.Sub(8, 8)
	got := call{Op: fakeverbs.SGE, Args: [6]uint64{0x55, at(8), 8}}
	window := &libibverbs.Mw{}
	const flags = SendSignaled | SendFence

	for name, tt := range map[string]struct {
		add  func(b *SendBatch) error
		want []call
	}{
		"send": {
			func(b *SendBatch) error { return b.Send(9, flags, segment) },
			[]call{{Op: fakeverbs.Send}, one},
		},
		"send nothing": {
			func(b *SendBatch) error { return b.Send(9, flags) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.SGEList}},
		},
		"send several": {
			func(b *SendBatch) error { return b.Send(9, flags, segment, mr.Sub(100, 7)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.SGEList, Args: [6]uint64{2, at(100), 7}}},
		},
		"send inline": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, mr.Sub(0, 4)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{4, 'a' | 'b'<<8 | 'c'<<16 | 'd'<<24}}},
		},
		"send inline several": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, mr.Sub(6, 2), mr.Sub(0, 1)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{3, 'g' | 'h'<<8 | 'a'<<16}}},
		},
		"send any bytes inline": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, InlineBytes([]byte("xyz"))) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{3, 'x' | 'y'<<8 | 'z'<<16}}},
		},
		"send any bytes inline beside a region's": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, InlineBytes([]byte("xy")), mr.Sub(0, 2)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{4, 'x' | 'y'<<8 | 'a'<<16 | 'b'<<24}}},
		},
		"send raw memory": {
			func(b *SendBatch) error { return b.Send(9, flags, RawSegment(0x5000, 100, 0x66).Sub(8, 20)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.SGE, Args: [6]uint64{0x66, 0x5008, 20}}},
		},
		"write any bytes inline": {
			func(b *SendBatch) error { return b.Write(9, remote, flags|SendInline, InlineBytes([]byte("x"))) },
			[]call{{Op: fakeverbs.Write, Args: [6]uint64{0x77, 0x1000}}, {Op: fakeverbs.Inline, Args: [6]uint64{1, 'x'}}},
		},
		"send imm": {
			func(b *SendBatch) error { return b.SendImm(9, 0x01020304, flags, segment) },
			[]call{{Op: fakeverbs.SendImm, Args: [6]uint64{be}}, one},
		},
		"send inv": {
			func(b *SendBatch) error { return b.SendInv(9, 0x88, flags, segment) },
			[]call{{Op: fakeverbs.SendInv, Args: [6]uint64{0x88}}, one},
		},
		"write": {
			func(b *SendBatch) error { return b.Write(9, remote, flags, segment) },
			[]call{{Op: fakeverbs.Write, Args: [6]uint64{0x77, 0x1000}}, one},
		},
		"write imm": {
			func(b *SendBatch) error { return b.WriteImm(9, remote, 0x01020304, flags, segment) },
			[]call{{Op: fakeverbs.WriteImm, Args: [6]uint64{0x77, 0x1000, be}}, one},
		},
		"read": {
			func(b *SendBatch) error { return b.Read(9, remote, flags, segment) },
			[]call{{Op: fakeverbs.Read, Args: [6]uint64{0x77, 0x1000}}, one},
		},
		"compare and swap": {
			func(b *SendBatch) error { return b.CompareSwap(9, remote, 11, 12, flags, result) },
			[]call{{Op: fakeverbs.CompareSwap, Args: [6]uint64{0x77, 0x1000, 11, 12}}, got},
		},
		"fetch and add": {
			func(b *SendBatch) error { return b.FetchAdd(9, remote, 11, flags, result) },
			[]call{{Op: fakeverbs.FetchAdd, Args: [6]uint64{0x77, 0x1000, 11}}, got},
		},
		"bind": {
			func(b *SendBatch) error {
				wr, err := b.add(libibverbs.IBV_WR_BIND_MW, 0, 9, flags, unlimited, nil)
				*wr.BindMw() = libibverbs.SendWrBindMw{Mw: window, Rkey: 0x99, BindInfo: libibverbs.MwBindInfo{
					Mr: mr.raw, Addr: at(8), Length: 100, MwAccessFlags: uint32(AccessRemoteWrite),
				}}
				return err
			},
			[]call{{Op: fakeverbs.BindMW, Args: [6]uint64{
				uint64(uintptr(unsafe.Pointer(window))), 0x99, at(8), 100, uint64(AccessRemoteWrite),
			}}},
		},
		"local invalidate": {
			func(b *SendBatch) error { return b.LocalInv(9, 0x88, flags) },
			[]call{{Op: fakeverbs.LocalInv, Args: [6]uint64{0x88}}},
		},
		"flush": {
			func(b *SendBatch) error { return b.Flush(9, remote, FlushGlobal|FlushPersistent, flags) },
			[]call{{Op: fakeverbs.Flush, Args: [6]uint64{0x77, 0x1000, 512, 3, 0}}},
		},
		"flush region": {
			func(b *SendBatch) error { return b.FlushRegion(9, remote, FlushPersistent, flags) },
			[]call{{Op: fakeverbs.Flush, Args: [6]uint64{0x77, 0x1000, 512, 2, 1}}},
		},
		"atomic write": {
			func(b *SendBatch) error { return b.AtomicWrite(9, remote, [8]byte(mr.bytes), flags) },
			[]call{{Op: fakeverbs.AtomicWrite, Args: [6]uint64{0x77, 0x1000, native(mr.bytes)}}},
		},
		"TSO": {
			func(b *SendBatch) error { return b.TSO(9, mr.Sub(0, 54), 1400, flags, segment) },
			[]call{{Op: fakeverbs.SendTSO, Args: [6]uint64{at(0), 54, 1400}}, one},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDevice(t)
			f.Set(fakeverbs.Script{})
			b, err := NewSendBatch(2, 2)
			require.NoError(t, err)
			require.NoError(t, b.Send(1, SendSolicited))
			require.NoError(t, tt.add(b))
			n, err := f.ex.PostSend(b)
			require.NoError(t, err)
			require.Equal(t, 2, n)

			calls := f.Calls()
			require.Equal(t, []fakeverbs.Op{fakeverbs.Start, fakeverbs.Send, fakeverbs.SGEList}, ops(calls[:3]))
			require.Equal(t, SendSolicited, calls[1].Flags)
			calls, last := calls[3:len(calls)-1], calls[len(calls)-1]
			require.Equal(t, fakeverbs.Complete, last.Op)
			for i := range calls {
				require.EqualValues(t, 9, calls[i].ID)
				require.Equal(t, flags, calls[i].Flags&^SendInline)
				calls[i].ID, calls[i].Flags = 0, 0
			}
			require.Equal(t, tt.want, calls)
		})
	}
}

func native(b []byte) uint64 {
	var v uint64
	for i := range 8 { // the platforms that have cgo here and a device are little-endian, but for one
		v |= uint64(b[i]) << (8 * i)
	}
	if libibverbs.NewBe32(1) == 1 {
		v = 0
		for i := range 8 {
			v = v<<8 | uint64(b[i])
		}
	}
	return v
}

func ops(calls []call) (ops []fakeverbs.Op) {
	for _, c := range calls {
		ops = append(ops, c.Op)
	}
	return ops
}
