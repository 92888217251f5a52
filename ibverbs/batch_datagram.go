package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Destination is who gets a datagram; see [PD.CreateDestination].
type Destination struct {
	AH    *AH    // the way to the peer's port
	QPNum uint32 // of the peer
	QKey  uint32 // that the peer's queue pair has
}

func (d Destination) check() error {
	if d.AH.self() == nil {
		return cerr.Invalid("datagram without an address handle")
	}
	return nil
}

func (d Destination) set(ud *libibverbs.SendWrWrUd) {
	*ud = libibverbs.SendWrWrUd{Ah: d.AH.Raw(), RemoteQpn: d.QPNum, RemoteQkey: d.QKey}
}

// SendTo adds a datagram, for a queue pair of type QPTypeUD; see
// ibv_post_send(3).
func (b *SendBatch) SendTo(id uint64, to Destination, flags SendFlags, segments ...Segment) error {
	return b.addTo(libibverbs.IBV_WR_SEND, 0, id, to, flags, segments)
}

// SendImmTo adds a datagram with 32 bits of immediate data, given in this
// host's byte order; see ibv_post_send(3).
func (b *SendBatch) SendImmTo(id uint64, to Destination, imm uint32, flags SendFlags, segments ...Segment) error {
	return b.addTo(libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.NewBe32(imm), id, to, flags, segments)
}

func (b *SendBatch) addTo(op libibverbs.WrOpcode, imm libibverbs.Be32, id uint64, to Destination, flags SendFlags, segments []Segment) error {
	if err := to.check(); err != nil {
		return refusedSend(op, b.Len(), err)
	}
	wr, err := b.add(op, imm, id, flags, unlimited, segments)
	if err != nil {
		return err
	}
	to.set(wr.Wr.Ud())
	b.look(b.arena.n-1, to.AH.self(), nil)
	return nil
}

// TSO adds a large message that the device cuts into packets with mss bytes of
// data each, every one behind a copy of the header; for a queue pair of type
// QPTypeRawPacket, or of QPTypeUD with [SendWR.SetDestination]; see
// ibv_post_send(3). The header lies in a memory region.
func (b *SendBatch) TSO(id uint64, header Segment, mss uint16, flags SendFlags, segments ...Segment) error {
	if err := header.check(); err != nil {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), fmt.Errorf("header: %w", err))
	}
	if header.mr.bytes == nil {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), fmt.Errorf("header: %w", header.mr.notInline()))
	}
	if header.n == 0 || header.n > 1<<16-1 || mss == 0 {
		return refusedSend(libibverbs.IBV_WR_TSO, b.Len(), cerr.Invalid("packets of %d bytes behind a header of %d", mss, header.n))
	}
	wr, err := b.add(libibverbs.IBV_WR_TSO, 0, id, flags, unlimited, segments)
	if err != nil {
		return err
	}
	*wr.Tso() = libibverbs.SendWrTso{
		Hdr: unsafe.Pointer(&header.mr.bytes[header.offset]), HdrSz: uint16(header.n), Mss: mss,
	}
	b.look(b.arena.n-1, &header.mr.object, nil)
	return nil
}

// notDatagram returns the index of the first request that is not a datagram
// with a destination, -1 if all are.
func (b *SendBatch) notDatagram() int {
	for i := range b.arena.used() {
		wr := &b.arena.wrs[i]
		switch wr.Opcode {
		case libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_TSO:
			if wr.Wr.Ud().Ah != nil {
				continue
			}
		}
		return i
	}
	return -1
}
