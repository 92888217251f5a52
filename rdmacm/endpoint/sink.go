// SPDX-License-Identifier: Apache-2.0

package endpoint

import "github.com/verbena-go/verbena/rdmacm"

// sink takes the events of an endpoint's ID from package rdmacm.
type sink struct{ ep *Endpoint }

// Put gives an event to the inbox. When the peer has ended the connection, Put
// moves the queue pair into the error state. Otherwise, requests that the peer
// has not acknowledged would never complete.
func (s sink) Put(ev *rdmacm.Event) {
	s.ep.inbox.put(ev)
	if ev.Type == rdmacm.EventDisconnected {
		go func() { // no other event should wait for the kernel
			if qp := ev.ID.QP(); qp != nil {
				_ = qp.SetError() // the caller may have closed it
			}
		}()
	}
}

func (s sink) Lock() { s.ep.inbox.mu.Lock() }

func (s sink) Unlock() { s.ep.inbox.mu.Unlock() }

func (s sink) HasRoom(backlog int) bool { return s.ep.inbox.hasRoom(backlog) }

func (s sink) Adopt(request *rdmacm.ID, _ *rdmacm.Event) { s.ep.inbox.add(newEndpoint(request)) }
