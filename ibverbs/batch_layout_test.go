package ibverbs

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

// follow returns the list that C sees, from the first request on.
func follow[T any](b []T, next func(*T) *T) []*T {
	var list []*T
	if len(b) > 0 {
		for wr := &b[0]; wr != nil; wr = next(wr) {
			list = append(list, wr)
		}
	}
	return list
}

// sendList returns the list that C sees of a batch that is posted.
func sendList(t *testing.T, b *SendBatch) []*libibverbs.SendWr {
	t.Helper()
	if b.Len() == 0 {
		return nil
	}
	require.NoError(t, b.begin(b.arena.used()))
	defer b.finish()
	return follow(b.arena.used(), func(wr *libibverbs.SendWr) *libibverbs.SendWr { return wr.Next })
}

func nextRecv(wr *libibverbs.RecvWr) *libibverbs.RecvWr { return wr.Next }

func TestSendBatchLayout(t *testing.T) {
	mr := fakeMR(t, 4096, 0x55)
	at := func(offset int) uint64 { return mr.addr() + uint64(offset) }
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 512}
	const imm = 0x01020304
	immBytes := [4]byte{1, 2, 3, 4} // network order

	tests := map[string]struct {
		add    func(b *SendBatch) error
		opcode libibverbs.WrOpcode
		flags  SendFlags
		imm    bool
		remote bool
		sges   []libibverbs.Sge
	}{
		"send": {
			add:    func(b *SendBatch) error { return b.Send(9, SendSignaled, mr.Sub(10, 20)) },
			opcode: libibverbs.IBV_WR_SEND, flags: SendSignaled,
			sges: []libibverbs.Sge{{Addr: at(10), Length: 20, Lkey: 0x55}},
		},
		"send nothing": {
			add:    func(b *SendBatch) error { return b.Send(9, 0) },
			opcode: libibverbs.IBV_WR_SEND,
		},
		"send inline": {
			add:    func(b *SendBatch) error { return b.Send(9, SendInline|SendSolicited, mr.Sub(0, 1)) },
			opcode: libibverbs.IBV_WR_SEND, flags: SendInline | SendSolicited,
			sges: []libibverbs.Sge{{Addr: at(0), Length: 1, Lkey: 0x55}},
		},
		"send imm": {
			add:    func(b *SendBatch) error { return b.SendImm(9, imm, SendFence, mr.Sub(4096, 0)) },
			opcode: libibverbs.IBV_WR_SEND_WITH_IMM, flags: SendFence, imm: true,
			sges: []libibverbs.Sge{{Addr: at(4096), Lkey: 0x55}},
		},
		"write": {
			add: func(b *SendBatch) error {
				return b.Write(9, remote, 0, mr.Sub(0, 256), mr.Sub(1000, 256))
			},
			opcode: libibverbs.IBV_WR_RDMA_WRITE, remote: true,
			sges: []libibverbs.Sge{{Addr: at(0), Length: 256, Lkey: 0x55}, {Addr: at(1000), Length: 256, Lkey: 0x55}},
		},
		"write imm": {
			add:    func(b *SendBatch) error { return b.WriteImm(9, remote, imm, 0) },
			opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, imm: true, remote: true,
		},
		"read": {
			add:    func(b *SendBatch) error { return b.Read(9, remote, 0, mr.Sub(1, 2)) },
			opcode: libibverbs.IBV_WR_RDMA_READ, remote: true,
			sges: []libibverbs.Sge{{Addr: at(1), Length: 2, Lkey: 0x55}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := NewSendBatch(4, 2)
			require.NoError(t, err)
			for range 2 { // each use meets what an earlier one has left
				b.Reset()
				for i := range 2 {
					require.NoError(t, b.Write(1, RemoteBuffer{Addr: 1, RKey: 1, Len: 99}, SendFence, mr.Sub(5, 5), mr.Sub(6, 6)))
					require.NoError(t, b.WR(i).SetXRCSRQ(5))
				}
				b.Reset()
				require.NoError(t, b.Write(1, RemoteBuffer{Addr: 1, RKey: 1, Len: 99}, SendFence, mr.Sub(5, 5), mr.Sub(6, 6)))
				require.NoError(t, tt.add(b))
				require.Equal(t, 2, b.Len())

				list := sendList(t, b)
				require.Len(t, list, 2)
				wr := list[1]
				require.EqualValues(t, 9, wr.WrId)
				require.Equal(t, tt.opcode, wr.Opcode)
				require.Equal(t, uint32(tt.flags), wr.SendFlags)
				require.Equal(t, tt.sges, append([]libibverbs.Sge(nil), sgesOf(wr.SgList, wr.NumSge)...))
				if tt.imm {
					require.Equal(t, immBytes, *(*[4]byte)(unsafe.Pointer(wr.ImmData())))
				}
				if tt.remote {
					require.Equal(t, libibverbs.SendWrWrRdma{RemoteAddr: 0x1000, Rkey: 0x77}, *wr.Wr.Rdma())
				} else {
					require.Nil(t, wr.Wr.Ud().Ah)
				}
				require.Zero(t, wr.QpType.Xrc().RemoteSrqn)
			}
		})
	}
}

func TestRecvBatchLayout(t *testing.T) {
	mr := fakeMR(t, 64, 0x55)
	b, err := NewRecvBatch(3, 2)
	require.NoError(t, err)
	require.NoError(t, b.Recv(1, mr.Sub(0, 8), mr.Sub(16, 8)))
	require.NoError(t, b.Recv(2))
	require.NoError(t, b.Recv(3, mr.All()))

	list := follow(b.arena.used(), nextRecv)
	require.Len(t, list, 3)
	for i, want := range [][]libibverbs.Sge{
		{{Addr: mr.addr(), Length: 8, Lkey: 0x55}, {Addr: mr.addr() + 16, Length: 8, Lkey: 0x55}},
		nil,
		{{Addr: mr.addr(), Length: 64, Lkey: 0x55}},
	} {
		require.EqualValues(t, i+1, list[i].WrId)
		require.Equal(t, want, append([]libibverbs.Sge(nil), sgesOf(list[i].SgList, list[i].NumSge)...))
	}
}

// A list ends after its last request, whatever the batch has held before.
func TestBatchReuse(t *testing.T) {
	send, err := NewSendBatch(5, 0)
	require.NoError(t, err)
	recv, err := NewRecvBatch(5, 0)
	require.NoError(t, err)
	for _, n := range []int{5, 1, 3, 0, 2, 5} {
		send.Reset()
		recv.Reset()
		for i := range n {
			require.NoError(t, send.Send(uint64(i), 0))
			require.NoError(t, recv.Recv(uint64(i)))
		}
		require.Equal(t, n, send.Len())
		require.Equal(t, n, recv.Len())
		require.Len(t, sendList(t, send), n)
		require.Len(t, follow(recv.arena.used(), nextRecv), n)
	}
}
