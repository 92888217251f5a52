package ibverbs

import (
	"runtime"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
)

// Exchange posts receives, then requests, and then polls a completion queue
// until at least so many completions are there or the budget is used up, of
// which at most MaxSpin counts: a turn of a conversation in one call of C. It
// returns how many completions it has put into wcs, which has room for at least
// least; fewer than that when time was up, to be waited for with CQ.Spin. recv
// and send may be nil or empty.
//
// A *PostError says which request could not be posted: if it is a receive
// (ibv_post_recv), no request was posted either; if it is a request, all
// receives were. It does not poll then. Anything else is an error of polling.
// See PostRecv, PostSend and CQ.Spin.
func (qp *QP) Exchange(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, budget time.Duration) (int, error) {
	return qp.converse(recv, send, cq, wcs, least, datapath.Spinning, budget)
}

// ExchangeAndSleep is Exchange that sleeps as CQ.Sleep does instead of spinning:
// it may end before the budget does. The queue needs a channel. Each completion
// may give an event and wake the thread, so that a queue for receives alone, and
// another one for requests, to be polled now and then, suits it best.
func (qp *QP) ExchangeAndSleep(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, budget time.Duration) (int, error) {
	how := datapath.Sleeping
	if cq != nil && cq.solicited {
		how = datapath.SleepingSolicited
	}
	return qp.converse(recv, send, cq, wcs, least, how, budget)
}

func (qp *QP) converse(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, how datapath.How, budget time.Duration) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	if err := cq.self().Use(); err != nil {
		qp.object.Done()
		return 0, err
	}
	_, n, err := qp.exchange(recv, send, cq, wcs, least, how, bounded(budget))
	cq.object.Done() // not deferred: see PostSend
	qp.object.Done()
	return n, err
}

// PostSendAndSpin is PostSend, and then Spin on a completion queue, in one call
// of C. If posting fails, it does not poll; see ibv_post_send(3) and
// ibv_poll_cq(3).
func (qp *QP) PostSendAndSpin(b *SendBatch, cq *CQ, wcs []WC, budget time.Duration) (posted, n int, err error) {
	if err := qp.self().Use(); err != nil {
		return 0, 0, err
	}
	if err := cq.self().Use(); err != nil {
		qp.object.Done()
		return 0, 0, err
	}
	if b.Len() > 0 {
		posted, n, err = qp.exchange(nil, b, cq, wcs, 1, datapath.Spinning, bounded(budget))
	} else {
		err = cerr.Refuse(opPostSend, qp.object.Name(), "the batch is empty")
	}
	cq.object.Done() // not deferred: see PostSend
	qp.object.Done()
	return posted, n, err
}

func (qp *QP) exchange(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, how datapath.How, budget time.Duration) (posted, n int, err error) {
	if least < 1 || least > len(wcs) {
		return 0, 0, cerr.Refuse(cq.queue.Op(), cq.object.Name(), "least is %d, not from 1 to the length of wcs, %d", least, len(wcs))
	}
	if how != datapath.Spinning && cq.channel == nil {
		return 0, 0, noChannel("QP.ExchangeAndSleep", cq)
	}
	var receives *libibverbs.RecvWr
	if recv.Len() > 0 {
		receives = &recv.arena.wrs[0]
	}
	var wrs []libibverbs.SendWr
	var requests *libibverbs.SendWr
	if send.Len() > 0 {
		if wrs, err = qp.sendList(send); err != nil {
			return 0, 0, err
		}
		requests = &wrs[0]
	}
	var e datapath.Exchanged
	datapath.Exchange(qp.raw, receives, qp.forSending(), qp.sendOps, requests,
		cq.queue, least, count(wcs), unsafe.Pointer(&wcs[0]), how, budget, &e)
	if requests != nil {
		send.finish()
	}
	runtime.KeepAlive(recv) // whose cleanups would unmap the requests
	runtime.KeepAlive(send)
	if e.Received.Value != 0 {
		bad, err := recvPosted(&e.Received)
		_, err = recv.failed(qp.self(), bad, err)
		runtime.KeepAlive(recv)
		return 0, 0, err
	}
	if e.Sent.Value != 0 {
		posted, err = qp.notSent(wrs, &e.Sent)
		runtime.KeepAlive(send)
		return posted, 0, err
	}
	n, err = cq.slept(len(wcs), &e.Polled)
	return len(wrs), n, err
}
