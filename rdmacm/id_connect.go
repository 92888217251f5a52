package rdmacm

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// ConnParam is what the two ends of a connection tell each other; see
// rdma_connect(3). The zero value is usable.
type ConnParam struct {
	// PrivateData goes to the peer; see Config.PrivateData for how much.
	PrivateData []byte
	// ResponderResources is how many RDMA reads and atomics the peer may have
	// under way here, and InitiatorDepth how many this end may have under way
	// there. 0 stands for as many as the device and, for Accept, the peer allow;
	// negative is none.
	ResponderResources, InitiatorDepth int
	// FlowControl lets the device tell the peer how many receives are posted.
	FlowControl bool
	// RetryCount is how often either end sends again what nobody acknowledges.
	// That of Connect counts, not that of Accept. 0 stands for 6; negative is
	// never; 7 is the most, and with Soft-RoCE means for ever.
	RetryCount int
	// PeerRNRRetryCount is how often the peer sends again while there is no
	// receive here. 0 stands for ibverbs.RNRRetryForever; negative is never.
	PeerRNRRetryCount int

	// QPNum is the number of a queue pair that CreateQP has not made, and SRQ
	// says that it takes its receives from a shared queue. With one that
	// CreateQP has made, neither has an effect.
	QPNum uint32
	SRQ   bool
}

// orDefault returns what a count stands for whose zero value is the default, and
// whose negative values are none, within the most that there may be.
func orDefault(count, zero, most int) int { return min(max(cmp.Or(count, zero), 0), most) }

// with calls f with the parameters as C takes them. The length of the private
// data has been checked.
func (p ConnParam) with(f func(*librdmacm.ConnParam) error) error {
	raw := &librdmacm.ConnParam{
		PrivateDataLen:     uint8(len(p.PrivateData)),
		ResponderResources: uint8(orDefault(p.ResponderResources, librdmacm.RDMA_MAX_RESP_RES, librdmacm.RDMA_MAX_RESP_RES)),
		InitiatorDepth:     uint8(orDefault(p.InitiatorDepth, librdmacm.RDMA_MAX_INIT_DEPTH, librdmacm.RDMA_MAX_INIT_DEPTH)),
		RetryCount:         uint8(orDefault(p.RetryCount, defaultRetry, maxRetry)),
		RnrRetryCount:      uint8(orDefault(p.PeerRNRRetryCount, defaultRNRRetry, maxRetry)),
		QpNum:              p.QPNum,
	}
	if p.FlowControl {
		raw.FlowControl = 1
	}
	if p.SRQ {
		raw.Srq = 1
	}
	if data := slices.Clone(p.PrivateData); len(data) > 0 {
		raw.PrivateData = unsafe.Pointer(unsafe.SliceData(data))
	}
	pin := pinned(raw.PrivateData)
	defer pin.Unpin()
	return f(raw)
}

// Listen makes the id wait for connection requests, which come as
// EventConnectRequest; see rdma_listen(3). Up to backlog requests wait to be
// read from the channel, 128 for 0, and at most net.rdma_ucm.max_backlog of the
// system. The kernel does not answer further ones, and their peers ask again some
// seconds later.
func (id *ID) Listen(backlog int) error {
	backlog = backlogOf(backlog)
	return id.listen(backlog, backlog)
}

// backlogOf returns how many requests may wait where the caller has said backlog.
func backlogOf(backlog int) int {
	if backlog <= 0 {
		return defaultBacklog
	}
	return min(backlog, maxBacklog)
}

// unread is how many requests may wait to be read by who reads them at once, to
// keep or to reject them: as many as the system allows, because the kernel does
// not answer those for which it has no room.
const unread = 0

// listen is Listen where up to backlog requests wait for the program, and up to
// kernel to be read.
func (id *ID) listen(backlog, kernel int) error {
	return id.call(func() error {
		before := id.backlog.Load()
		id.backlog.Store(int32(backlog)) // before a request can come
		err := librdmacm.Listen(id.raw, int32(kernel))
		if err != nil {
			id.backlog.Store(before)
		}
		return err
	})
}

// Connect asks the peer for a connection; see rdma_connect(3).
// EventEstablished follows, or EventConnectResponse if the id has no queue
// pair of its own, or an event that reports a failure. An id for datagrams asks
// for the peer's queue pair, which EventEstablished has.
func (id *ID) Connect(p ConnParam) error { return id.connect(p, false) }

// connect is Connect. If the caller moves the queue pair through its states,
// librdmacm does not see it until Establish.
func (id *ID) connect(p ConnParam, movesQP bool) error {
	const missing = "resolve the address and the route"
	err := id.callBound("rdma_connect", missing, func() error {
		if err := id.checkPrivateData(limitsOfRequest, p.PrivateData); err != nil {
			return cerr.Argument("rdma_connect", "", err)
		}
		if movesQP {
			id.setQP(nil)
		}
		return p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Connect(id.raw, raw) })
	})
	return explain(err, id.saw(EventRouteResolved), missing)
}

// Accept answers a connection request; see rdma_accept(3). EventEstablished
// follows, but not for datagrams.
func (id *ID) Accept(p ConnParam) error { return id.accept(p, false) }

// accept is Accept. If the caller has moved the queue pair through its states,
// librdmacm does not see it meanwhile.
func (id *ID) accept(p ConnParam, movedQP bool) error {
	return id.answer("rdma_accept", func() error {
		if p.QPNum == 0 && !id.hasQP {
			return errStep("rdma_accept", "", "create a queue pair")
		}
		if err := id.checkPrivateData(limitsOfReply, p.PrivateData); err != nil {
			return cerr.Argument("rdma_accept", "", err)
		}
		if movedQP {
			defer id.setQP(id.raw.Qp)
			id.setQP(nil)
		}
		return p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Accept(id.raw, raw) })
	})
}

// Reject refuses a connection request; see rdma_reject(3). The peer gets the
// private data, of up to 148 bytes, or 136 for datagrams, and the reason
// ReasonConsumer. The id still has to be closed.
func (id *ID) Reject(privateData []byte) error {
	return id.reject("rdma_reject", librdmacm.Reject, privateData)
}

// RejectECE is Reject because of the enhancements that the peer asked for, with
// the reason ReasonVendorOption; see rdma_reject_ece(3). The peer may try again
// with other ones.
func (id *ID) RejectECE(privateData []byte) error {
	return id.reject("rdma_reject_ece", librdmacm.RejectEce, privateData)
}

func (id *ID) reject(op string, call func(*librdmacm.CmId, unsafe.Pointer, uint8) error, privateData []byte) error {
	return id.answer(op, func() error {
		if err := id.checkPrivateData(limitsOfReject, privateData); err != nil {
			return cerr.Argument(op, "", err)
		}
		return call(id.raw, unsafe.Pointer(unsafe.SliceData(privateData)), uint8(len(privateData)))
	})
}

// refuse rejects and closes a request that nobody wants.
func (id *ID) refuse() {
	_ = id.Reject(nil)
	_ = id.Close()
}

// answer makes a call of C that answers the request that the id came with.
func (id *ID) answer(op string, f func() error) error {
	const missing = "receive a connection request"
	if id.self() == nil || id.request == nil {
		return errStep(op, id.name(), missing)
	}
	return id.callBound(op, missing, f)
}

// Establish completes a connection whose queue pair was not made by CreateQP,
// after EventConnectResponse; see rdma_establish(3).
func (id *ID) Establish() error {
	const missing = "connect"
	err := id.callBound("rdma_establish", missing, func() error {
		if id.qp.QP != nil { // which connect has hidden
			defer id.setQP(id.qp.Raw())
		}
		return librdmacm.Establish(id.raw)
	})
	return explain(err, id.wasUp(), missing)
}

// Disconnect ends the connection and moves the id's queue pair into the error
// state; see rdma_disconnect(3). EventDisconnected follows at both ends.
func (id *ID) Disconnect() error {
	const missing = "connect"
	err := id.callBound("rdma_disconnect", missing, func() error { return librdmacm.Disconnect(id.raw) })
	return explain(err, id.wasUp(), missing)
}

// Notify tells the communication manager of an event that a queue pair had,
// which only matters for ibverbs.EventCommEstablished: a message that arrives
// before the last one of the handshake completes that. See rdma_notify(3). It
// fails with syscall.EISCONN if the connection is up already.
func (id *ID) Notify(event ibverbs.EventType) error {
	return id.callBound("rdma_notify", "accept", func() error { return librdmacm.Notify(id.raw, libibverbs.EventType(event)) })
}

// SetLocalECE says which enhancements of the connection this end offers or
// takes; see rdma_set_local_ece(3). It comes before Connect or Accept, and is
// for ids whose queue pair was not made by CreateQP.
func (id *ID) SetLocalECE(ece ibverbs.ECE) error {
	return id.call(func() error { return librdmacm.SetLocalEce(id.raw, rawECE(ece)) })
}

// RemoteECE returns the enhancements that the peer offers or has taken, as of
// EventConnectRequest or EventConnectResponse; see rdma_get_remote_ece(3).
func (id *ID) RemoteECE() (ibverbs.ECE, error) {
	raw := rawECE(ibverbs.ECE{})
	err := id.call(func() error { return librdmacm.GetRemoteEce(id.raw, raw) })
	return ibverbs.ECE{VendorID: raw.VendorId, Options: raw.Options}, err
}
