// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// In programs that are built with -race, the device tells Go's race detector
// about the memory of the program. In other programs, detector.Enabled is
// false. noteWrites, noteOverwritten and noteDropped also tell the check of
// memory, and toldOf returns nothing.

// told has what threads that post need to know, without the lock that guards
// the devices.
var told = struct {
	sync.Mutex
	queues  map[*WorkQueue]toldQueue
	regions map[toldKey]toldRegion
}{queues: map[*WorkQueue]toldQueue{}, regions: map[toldKey]toldRegion{}}

type toldQueue struct {
	device *Device
	send   bool // whether it is a send queue
	queue  *detector.Queue
}

type toldKey struct {
	device *Device
	key    uint32
}

type toldRegion struct {
	iova   uint64
	memory []byte
	region *detector.Region
}

// tellQueue makes TellPosted know a queue.
func (d *Device) tellQueue(w *WorkQueue, kind detector.QueueKind) {
	told.Lock()
	defer told.Unlock()
	told.queues[w] = toldQueue{d, kind == detector.SendQueue, detector.NewQueue(kind)}
}

// tellDropped ends the requests that were posted to a queue, as the queue is
// reset or destroyed.
func tellDropped(w *WorkQueue) {
	told.Lock()
	q := told.queues[w].queue
	told.Unlock()
	if q != nil {
		q.Drop()
	}
}

// tellQueueGone undoes tellQueue.
func tellQueueGone(w *WorkQueue) {
	tellDropped(w)
	told.Lock()
	defer told.Unlock()
	delete(told.queues, w)
}

// tellRegion makes TellPosted know the region's memory.
func (m *MR) tellRegion() {
	if m.told == nil {
		m.told = detector.NewRegion()
	}
	told.Lock()
	defer told.Unlock()
	told.regions[toldKey{m.pd.device, m.key}] = toldRegion{m.iova, m.memory, m.told}
}

// tellRegionGone undoes tellRegion. What the device has done with the memory
// happens before tellRegionGone returns.
func (m *MR) tellRegionGone() {
	told.Lock()
	delete(told.regions, toldKey{m.pd.device, m.key})
	told.Unlock()
	m.told.Release(m.memory)
}

// TellPosted tells the race detector that the calling goroutine posts the
// requests of a queue from the number first to before the number end. It must
// be called before the requests are visible to the device.
func TellPosted(w *WorkQueue, first, end uint32) {
	told.Lock()
	q, ok := told.queues[w]
	if !ok {
		told.Unlock()
		return
	}
	requests := make([]detector.Request, 0, end-first)
	for n := first; n != end; n++ {
		r := detector.Request{Access: detector.Receives}
		var segments []libibverbs.Sge
		if q.send {
			s := w.send(n)
			r.Access, r.Remote = accessOf(s.Opcode)
			if s.Flags&uint32(libibverbs.IBV_SEND_INLINE) == 0 && r.Access != detector.Nothing {
				segments, _ = w.sendSegments(s)
			}
		} else {
			segments, _ = w.recvSegments(w.recv(n))
		}
		for _, sge := range segments {
			region, ok := told.regions[toldKey{q.device, sge.Lkey}]
			if !ok || sge.Length == 0 {
				continue
			}
			offset, ok := within(sge.Addr, uint64(sge.Length), region.iova, uint64(len(region.memory)))
			if !ok {
				continue
			}
			r.Memory = append(r.Memory, region.memory[offset:][:sge.Length])
			r.Regions = append(r.Regions, region.region)
		}
		requests = append(requests, r)
	}
	q.queue.Post(requests) // before the removal of a region, which waits for the requests that are posted
	told.Unlock()
	for i, r := range requests {
		if n := first + uint32(i); q.send {
			w.send(n).Ticket = r.Ticket
		} else {
			w.recv(n).Ticket = r.Ticket
		}
	}
}

// tellTagged tells the race detector that the calling goroutine adds a receive
// with the segments to the list, and returns its ticket.
func (d *Device) tellTagged(l *tagList, segments []libibverbs.Sge) (ticket uint32) {
	r := []detector.Request{{Access: detector.Receives}}
	for _, sge := range segments {
		m := d.mrs[sge.Lkey>>8]
		if m == nil || m.key != sge.Lkey || m.told == nil || m.memory == nil || sge.Length == 0 || !m.holds(sge.Addr, uint64(sge.Length)) {
			continue
		}
		r[0].Memory, r[0].Regions = append(r[0].Memory, m.bytes(sge.Addr, uint64(sge.Length))), append(r[0].Regions, m.told)
	}
	l.told.Post(r)
	return r[0].Ticket
}

// accessOf returns how a request accesses the memory of its segments, and
// whether it accesses memory of the peer by a key.
func accessOf(op libibverbs.WrOpcode) (access detector.Access, remote bool) {
	switch op {
	case libibverbs.IBV_WR_SEND, libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_SEND_WITH_INV:
		return detector.Sends, false
	case libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
		return detector.Sends, true
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
		return detector.GetsReply, true
	case libibverbs.IBV_WR_ATOMIC_WRITE: // C has copied the word
		return detector.Nothing, true
	}
	return detector.Nothing, false
}

// tellRemote tells the race detector that a request of q's peer, of which p is
// the first packet, accesses n bytes of this program's memory by a key. It does
// so only if the peer belongs to this process, as the detector sees no other,
// and not for memory that is paged on demand, which may be missing.
func (q *QP) tellRemote(p *wire.Packet, access detector.RemoteAccess, at location, n uint64, key uint32) {
	peer := q.device.find(q.attr.DestQpNum)
	if peer == nil || peer.attr.DestQpNum != q.number || q.outside || at.mr != nil && at.mr.paged {
		return
	}
	m := q.device.mrs[key>>8]
	if w := q.device.mws[key>>8]; m == nil && w != nil {
		m = w.mr
	}
	if ticket := peer.ticketOf(p.PSN); ticket != 0 && m != nil {
		detector.Remote(ticket, q.reliable, access, at.bytes(n), m.told, &q.told)
	}
}

// noteWrites reports that the device is about to write to the memory of the
// request with the ticket.
func (d *Device) noteWrites(ticket uint32) {
	if ticket != 0 && d.config.Writes != nil {
		d.config.Writes(ticket)
	}
}

// noteOverwritten reports that the device has written n bytes to the current
// receive, of a message that will not arrive, and that the receive serves the
// next message.
func (q *QP) noteOverwritten(n uint32) {
	r := &q.responder.receive
	if r.taken && r.ticket != 0 && q.device.config.Overwritten != nil {
		q.device.config.Overwritten(r.ticket, n)
	}
}

// noteDropped reports that a receive with the ticket will not complete, or that
// the program does not get its completion.
func (d *Device) noteDropped(ticket uint32) {
	if detector.Enabled {
		detector.Completed([]uint32{ticket})
	}
	if ticket != 0 && d.config.Dropped != nil {
		d.config.Dropped(ticket)
	}
}

// toldOf returns what a request has accessed, if its completion may be counted.
func (q *QP) toldOf(ticket uint32) (a detector.Account) {
	if detector.Enabled && q.counters != nil {
		a.Request(ticket)
	}
	return a
}

// toldOfPeer returns what the peer has accessed by a key since its last
// message, if its accesses may be counted.
func (q *QP) toldOfPeer() (a detector.Account) {
	if detector.Enabled && q.counters != nil {
		a.Peer(&q.told)
	}
	return a
}

// ticketOf returns the ticket of the request to which a packet of q belongs, or
// 0.
func (q *QP) ticketOf(psn wire.PSN) uint32 {
	r := &q.requester
	for i := range r.requests {
		n := r.next - 1 - uint32(i)
		req := r.request(n)
		if req.packets == 0 || psn.Before(req.psn) {
			continue
		}
		if psn.Before(req.end()) {
			return q.send.send(n).Ticket
		}
		return 0
	}
	return 0
}
