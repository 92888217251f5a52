package rdmacm

import (
	"context"
	"fmt"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// RegMsgs registers memory to send messages from, and to receive them into; see
// rdma_reg_msgs(3). It is closed with the endpoint, if not before.
func (ep *Endpoint) RegMsgs(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_msgs", b, ibverbs.AccessLocalWrite)
}

// RegRead registers memory that the peer may read; see rdma_reg_read(3).
func (ep *Endpoint) RegRead(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_read", b, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
}

// RegWrite registers memory that the peer may write; see rdma_reg_write(3).
func (ep *Endpoint) RegWrite(b []byte) (*ibverbs.MR, error) {
	return ep.register("rdma_reg_write", b, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
}

func (ep *Endpoint) register(op string, b []byte, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	var mr *ibverbs.MR
	err := ep.withQP(op, func(qp queuePair) (err error) {
		if mr, err = qp.PD().Register(b, access); err == nil {
			ep.regions.add(mr)
		}
		return err
	})
	return mr, err
}

// PostRecv posts a receive: the next message that no earlier one takes goes
// into the segments, in order, and its completion, with the id, to RecvComp.
// See rdma_post_recv(3). It does not wait.
func (ep *Endpoint) PostRecv(id uint64, segments ...ibverbs.Segment) error {
	return ep.post("rdma_post_recv", func(qp queuePair) error {
		srq := qp.srq
		if qp.Type() == ibverbs.QPTypeXRCRecv {
			if srq = ep.srq; srq == nil {
				return errStep("rdma_post_srq_recv", ep.id.name(), "create a shared receive queue")
			}
		}
		if ep.recv == nil {
			n := qp.Cap().MaxRecvSGE
			if srq != nil {
				attr, err := srq.Query()
				if err != nil {
					return err
				}
				n = attr.MaxSGE
			}
			batch, err := ibverbs.NewRecvBatch(1, n)
			if err != nil {
				return err
			}
			ep.recv = batch
		}
		ep.recv.Reset()
		if err := ep.recv.Recv(id, segments...); err != nil {
			return err
		}
		post := qp.PostRecv
		if srq != nil {
			post = srq.PostRecv
		}
		_, err := post(ep.recv)
		return err
	})
}

// PostSend sends a message made of the segments. With ibverbs.SendSignaled, or
// if the queue pair signals all, a completion with the id goes to SendComp. See
// rdma_post_send(3). It does not wait.
func (ep *Endpoint) PostSend(id uint64, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_send", func(b *ibverbs.SendBatch) error {
		return b.Send(id, flags, segments...)
	})
}

// PostRead reads a peer's memory into the segments, as PostSend sends; see
// rdma_post_read(3).
func (ep *Endpoint) PostRead(id uint64, from ibverbs.RemoteBuffer, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_read", func(b *ibverbs.SendBatch) error {
		return b.Read(id, from, flags, segments...)
	})
}

// PostWrite writes the segments to a peer's memory, as PostSend sends; see
// rdma_post_write(3).
func (ep *Endpoint) PostWrite(id uint64, to ibverbs.RemoteBuffer, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	return ep.postSend("rdma_post_write", func(b *ibverbs.SendBatch) error {
		return b.Write(id, to, flags, segments...)
	})
}

// PostUDSend sends a datagram to a queue pair of rdma_cm(7), as PostSend sends;
// see rdma_post_ud_send(3).
func (ep *Endpoint) PostUDSend(id uint64, ah *ibverbs.AH, qpNum uint32, flags ibverbs.SendFlags, segments ...ibverbs.Segment) error {
	to := ibverbs.Destination{AH: ah, QPNum: qpNum, QKey: librdmacm.RDMA_UDP_QKEY}
	return ep.postSend("rdma_post_ud_send", func(b *ibverbs.SendBatch) error {
		return b.SendTo(id, to, flags, segments...)
	})
}

func (ep *Endpoint) postSend(op string, fill func(*ibverbs.SendBatch) error) error {
	return ep.post(op, func(qp queuePair) error {
		if ep.send == nil {
			batch, err := ibverbs.NewSendBatch(1, qp.Cap().MaxSendSGE)
			if err != nil {
				return err
			}
			ep.send = batch
		}
		ep.send.Reset()
		if err := fill(ep.send); err != nil {
			return err
		}
		_, err := qp.PostSend(ep.send)
		return err
	})
}

// needQP returns the queue pair for an operation that needs one.
func (ep *Endpoint) needQP(op string) (queuePair, error) {
	qp, err := ep.ID().needQP(op)
	if err != nil && ep.ID() != nil && ep.inbox.err() == errEndpointClosed {
		err = errEndpointClosed // which closes the queue pair before the id
	}
	return qp, err
}

// withQP calls f with the queue pair, and with mu held.
func (ep *Endpoint) withQP(op string, f func(qp queuePair) error) error {
	if ep.ID() == nil {
		return ep.ID().self().Use()
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	qp, err := ep.needQP(op)
	if err != nil {
		return err
	}
	return f(qp)
}

// post calls f with the queue pair and the batches its own. Errors name the
// operation.
func (ep *Endpoint) post(op string, f func(qp queuePair) error) error {
	return ep.withQP(op, func(qp queuePair) error {
		if err := f(qp); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
}

// SendComp waits for the completion of a request that was sent; see
// rdma_get_send_comp(3). If the request has failed, the error is an
// *ibverbs.WCError, and the completion is there as well. A wait on a completion
// queue of the caller's ends with that, not with the endpoint.
func (ep *Endpoint) SendComp(ctx context.Context) (ibverbs.WC, error) {
	return ep.completion(ctx, "rdma_get_send_comp", func(qp queuePair) *ibverbs.CQ { return qp.send })
}

// RecvComp waits for the completion of a receive; see rdma_get_recv_comp(3). If
// that has failed, the error is an *ibverbs.WCError, and the completion is there
// as well. A wait on a completion queue of the caller's ends with that, not with
// the endpoint.
func (ep *Endpoint) RecvComp(ctx context.Context) (ibverbs.WC, error) {
	return ep.completion(ctx, "rdma_get_recv_comp", func(qp queuePair) *ibverbs.CQ {
		if qp.Type() == ibverbs.QPTypeXRCRecv {
			return ep.srqCQ()
		}
		return qp.recv
	})
}

func (ep *Endpoint) completion(ctx context.Context, op string, queue func(queuePair) *ibverbs.CQ) (ibverbs.WC, error) {
	qp, err := ep.needQP(op)
	if err != nil {
		return ibverbs.WC{}, err
	}
	cq := queue(qp)
	if cq == nil { // as one end of extended reliable connections may
		return ibverbs.WC{}, cerr.Refuse(op, ep.id.name(), "the %v queue pair has no completion queue for that", qp.Type())
	}
	return cq.WaitOne(ctx)
}
