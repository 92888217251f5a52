// SPDX-License-Identifier: Apache-2.0

// Package netpoll lets many goroutines wait for a file descriptor that belongs
// to a C library (an rdma_event_channel's fd, an ibv_comp_channel's fd, an
// ibv_context's async_fd) on Go's own netpoller. A waiting goroutine costs no
// operating system thread, and cancel, deadline and Close end every wait.
//
// # Leader and followers
//
// Often several goroutines want different events from one descriptor: the
// completion queues that share a completion channel, the connections that
// share an event channel. The netpoller wakes one reader per descriptor, and
// which goroutine an event belongs to is known only after reading it. So the
// waiters take turns:
//
//   - One of them leads. It alone calls its try function, which reads events
//     from the C library, and it alone is parked in the netpoller.
//   - All others follow. A follower waits until the leader finds an event for
//     it and signals its ready channel, or until the lead is free.
//   - A leader leaves when its try is done or its wait has ended. The follower
//     that has waited longest then leads. It calls try before it parks,
//     because its event may have arrived, or may have been left unread, while
//     no goroutine was reading.
//
// # What try must do
//
// try really performs the C call. It reads until it finds the caller's event
// (done) or until the C library reports EAGAIN (not done). On the way it hands
// over what belongs to others: it stores the event where its owner looks, and
// then fires the owner's ready channel. The netpoller reports only changes, so
// a try that returns "not done" with events left unread may sleep on them.
//
// try must not block, and must not call Wait or Close.
//
// A ready channel fires by being closed, or has a buffer of one and is sent to
// without blocking. It is a hint: a caller that returns from Wait because of it
// looks for its event, and waits again if there is none. A parked leader does
// not watch its ready channel. Code that fires one outside a try, for example
// to report that one of several completion queues is being closed, must call
// [FD.Kick] afterwards.
//
// # Lifetime
//
// [New] works on a duplicate of the descriptor, because the netpoller closes
// what it is given, and the original belongs to the C library. Close the FD
// before destroying the C object: after [FD.Close] has returned, no try is
// running and none will run.
package netpoll
