// SPDX-License-Identifier: Apache-2.0

// Package handled provides IDs whose events go to a handler function, as in the
// Linux kernel, where each rdma_cm_id has an rdma_cm_event_handler. It suits
// servers with many connections, most of them idle: an [ID] has a goroutine
// only while there are events to handle.
//
// [New] creates an ID. [ID.ID] returns the [rdmacm.ID], whose methods resolve,
// connect, accept and so on; the handler gets the event that answers, and takes
// the next step:
//
//	handle := func(id *handled.ID, ev *rdmacm.Event) error {
//		switch ev.Type {
//		case rdmacm.EventConnectRequest: // id is a new one
//			if _, err := id.CreateQP(pd, config); err != nil {
//				return err // the peer is rejected
//			}
//			return ev.ID.Accept(rdmacm.ConnParam{})
//		}
//		return ev.Err() // nil for an event that reports progress
//	}
//	ln, err := handled.New(rdmacm.PortSpaceTCP, handle)
//	err = ln.ID().BindAddr(address)
//	err = ln.Listen(0)
//
// If a handler returns an error, its ID is closed. Errors are like those of
// package rdmacm.
package handled
