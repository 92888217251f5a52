// SPDX-License-Identifier: Apache-2.0

// Package engine is an RDMA device without hardware and I/O. It has ports,
// protection domains, memory regions and windows, completion queues, shared
// receive queues, address handles, multicast groups, and queue pairs of type
// RC, UC and UD that speak RoCEv2.
//
// A Device has no clock, goroutine or lock. Its owner passes in the time and
// the packets that arrive, and gets packets, completion events and asynchronous
// events through the functions of Config. So a test can run hours of traffic in
// seconds, and the same seed gives the same run.
//
// Work requests and completions go through rings in memory that the engine
// shares with the threads that post and poll, which may be running C: see
// WorkQueue and CompletionQueue.
//
// # The way of a message
//
//  1. The posting thread fills a slot of a WorkQueue. The owner calls
//     Device.Ring, which gives the queue pair a turn (schedule.go).
//  2. In that turn, within Device.Advance, the requester checks the work
//     request and sends its packets, whose payload is the program's memory
//     (requester.go, ud.go).
//  3. The receiving device gets the packets by Device.Receive. It copies the
//     payload to its destination, adds a completion if one is due, and queues
//     an answer (responder.go, uc.go, copy.go).
//  4. The answer leaves in the receiving queue pair's next turn. It lets the
//     requester complete the work request. If a timer expires first (timer.go),
//     the requester sends the packets again.
package engine
