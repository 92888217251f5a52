package rdmacm

import "github.com/verbena-go/verbena/ibverbs"

// headers is memory for the headers of datagrams: the device puts one before
// each message, and users shall have the message alone. It is guarded by the
// operations' mutex.
type headers struct {
	mr       *ibverbs.MR
	free     []int             // slots of one header each
	segments []ibverbs.Segment // of the receive that is being posted
}

// newHeaders is for as many receives as can be posted.
func newHeaders(mr *ibverbs.MR, receives int) *headers {
	h := &headers{mr: mr}
	for slot := range receives {
		h.free = append(h.free, slot)
	}
	return h
}

// add puts room for a header before the segments of a receive.
func (h *headers) add(op *operation, segments []ibverbs.Segment) []ibverbs.Segment {
	last := len(h.free) - 1
	op.slot, h.free = h.free[last], h.free[:last]
	h.segments = append(h.segments[:0], h.mr.Sub(op.slot*ibverbs.GRHLen, ibverbs.GRHLen))
	h.segments = append(h.segments, segments...)
	return h.segments
}

// take copies the header of a receive that is done, and frees its room.
func (h *headers) take(op *operation) {
	copy(op.header[:], h.mr.Sub(op.slot*ibverbs.GRHLen, ibverbs.GRHLen).Bytes())
	h.free = append(h.free, op.slot)
}
