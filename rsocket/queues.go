// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// queues has the queue pair of a connection, and what is needed to post to it.
// The connection's mu guards posting.
type queues struct {
	qp        *ibverbs.QP
	send      *ibverbs.SendBatch
	segments  [2]ibverbs.Segment // segments of the request that is being posted
	maxInline int                // limit of inline data in bytes
	most      int                // limit of segments in a request: 1 or 2
	inFlight  int                // number of signaled requests that have not completed
	receives  receives           // receives of the queue pair; with a pool, the part has them instead
	messages  bool               // whether the device uses iWARP, so that words are messages of their own
	word      ibverbs.Segment    // on iWARP, memory of the word that is being posted, which posting copies
}

// postMessage posts an RDMA write of the segments with immediate data, the word
// of p. On iWARP, it posts the write, if there are segments, and then a message
// with the word. The request, or the last one, is signaled unless id is 0.
func (q *queues) postMessage(id uint64, p protocol.Post, segments []ibverbs.Segment) error {
	var to ibverbs.RemoteBuffer
	flags, n := ibverbs.SendFlags(0), 0
	if id != 0 {
		flags = ibverbs.SendSignaled
	}
	for _, s := range segments {
		n += s.Len()
	}
	if n > 0 {
		to = ibverbs.RemoteBuffer{Addr: p.To.Addr, RKey: p.To.Key, Len: uint64(n)}
		if n <= q.maxInline {
			flags |= ibverbs.SendInline
		}
	}
	q.send.Reset()
	if !q.messages {
		if err := q.send.WriteImm(id, to, uint32(p.Word), flags, segments...); err != nil {
			return err
		}
		err := q.postSend(id)
		if err != nil {
			err = q.explain(err)
		}
		return err
	}
	if n > 0 {
		if err := q.send.Write(0, to, flags&^ibverbs.SendSignaled, segments...); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint32(q.word.Bytes(), uint32(p.Word))
	if err := q.send.Send(id, flags|ibverbs.SendInline, q.word); err != nil {
		return err
	}
	return q.postSend(id)
}

// explain says what is missing if a device refuses a message although the queue
// pair is or was connected: what else could be wrong with it does not change,
// and was right when the queue pair was created. The other end may have failed
// in the same way, and ended the connection, so that the state is an error.
func (q *queues) explain(err error) error {
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if state, stateErr := q.qp.State(); stateErr != nil || state != ibverbs.QPStateRTS && state != ibverbs.QPStateError {
		return err
	}
	return fmt.Errorf("rsocket needs RDMA writes with immediate data, which the device refuses: %w", err)
}

// postDirect posts an RDMA write of the segments, of which the peer's program
// gets no message. The request is signaled unless id is 0.
func (q *queues) postDirect(id uint64, p protocol.Post, segments []ibverbs.Segment) error {
	flags := ibverbs.SendFlags(0)
	if id != 0 {
		flags |= ibverbs.SendSignaled
	}
	if p.Len <= q.maxInline {
		flags |= ibverbs.SendInline
	}
	to := ibverbs.RemoteBuffer{Addr: p.To.Addr, RKey: p.To.Key, Len: uint64(p.Len)}
	q.send.Reset()
	if err := q.send.Write(id, to, flags, segments...); err != nil {
		return err
	}
	return q.postSend(id)
}

// postProbe posts a signaled RDMA write of no bytes, which the peer's program
// does not notice.
func (q *queues) postProbe(id uint64) error {
	q.send.Reset()
	if err := q.send.Write(id, ibverbs.RemoteBuffer{}, ibverbs.SendSignaled); err != nil {
		return err
	}
	return q.postSend(id)
}

// postSend posts the request in q.send, which is signaled unless id is 0.
func (q *queues) postSend(id uint64) error {
	if _, err := q.qp.PostSend(q.send); err != nil {
		return err
	}
	if id != 0 {
		q.inFlight++
	}
	return nil
}
