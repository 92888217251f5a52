// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/rdmacm"
)

// objectOf returns the lifetime of an ID, or nil for a nil pointer.
func objectOf(id *rdmacm.ID) *object.Object { return bridge.Dispatch.Object(id) }

// sink returns the functions that take the events of the endpoint's ID.
func (ep *Endpoint) sink() bridge.Sink {
	in := &ep.inbox
	return bridge.Sink{
		Put:     func(ev any) { put(in, ev.(*rdmacm.Event)) },
		Lock:    &in.mu,
		HasRoom: in.hasRoom,
		Adopt:   func(request bridge.DispatchedID, _ any) { in.add(newEndpoint(request)) },
	}
}

// put gives the inbox an event. When the peer has ended the connection, nothing completes any more, not even what the peer
// has received and not acknowledged, until the queue pair is in the error state.
func put(in *inbox, ev *rdmacm.Event) {
	in.put(ev)
	if ev.Type == rdmacm.EventDisconnected {
		go func() { // no other event should wait for the kernel
			if qp := ev.ID.QP(); qp != nil {
				_ = qp.SetError() // the caller may have closed it
			}
		}()
	}
}

// queuePair is a queue pair with its completion queues.
type queuePair struct {
	*ibverbs.QP
	send, recv *ibverbs.CQ
	srq        *ibverbs.SRQ
}

// queuePairOf returns the queue pair for an operation that needs one.
func queuePairOf(d bridge.DispatchedID, op string) (queuePair, error) {
	qp, send, recv, srq, err := d.QP(op)
	if err != nil {
		return queuePair{}, err
	}
	return queuePair{qp.(*ibverbs.QP), send.(*ibverbs.CQ), recv.(*ibverbs.CQ), srq.(*ibverbs.SRQ)}, nil
}

// deviceOf returns the device for an operation that needs one.
func deviceOf(d bridge.DispatchedID, op string) (*ibverbs.Device, error) {
	device, err := d.Device(op)
	if err != nil {
		return nil, err
	}
	return device.(*ibverbs.Device), nil
}
