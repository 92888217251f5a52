// SPDX-License-Identifier: Apache-2.0

// Package netpoll lets many goroutines wait for a file descriptor that belongs
// to a C library (an rdma_event_channel's fd, an ibv_comp_channel's fd, an
// ibv_context's async_fd) on Go's own netpoller. A waiting goroutine costs no
// operating system thread, and cancel, deadline and Close end every wait.
//
// # Poller and waiters
//
// Often several goroutines want different events from one descriptor: the
// completion queues that share a completion channel, the connections that share
// an event channel. The netpoller wakes one reader per descriptor, and which
// goroutine an event belongs to is known only after reading it. So the
// goroutines take turns:
//
//   - One of them, the poller, calls its try function, which reads events from
//     the C library. Only the poller is parked in the netpoller.
//   - All others wait for the poller: until it finds an event for them and
//     signals their ready channel, or until it stops polling.
//   - The poller stops when its try is done or its wait has ended. The
//     goroutine that has waited longest becomes the next poller. It calls try
//     before it parks, because its event may have arrived, or may have been
//     left unread, while no goroutine was reading.
//
// # What try must do
//
// try makes the C call. It reads until it finds the caller's event (done) or
// until the C library reports EAGAIN (not done). It hands over the events of
// other goroutines: it stores each where its owner looks, and afterwards fires
// the owner's ready channel. The netpoller reports only changes, so after a try
// that returns "not done" although events are left unread, the poller may sleep
// in spite of them.
//
// try must not block, and must not call Wait or Close.
//
// A ready channel fires by being closed, or has a buffer of one and is sent to
// without blocking. It is a hint: a caller that returns from Wait because of it
// looks for its event, and waits again if there is none. A parked poller does
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
