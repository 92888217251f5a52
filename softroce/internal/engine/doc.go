// SPDX-License-Identifier: Apache-2.0

// Package engine is an RDMA device without hardware and without I/O: ports,
// protection domains, memory regions and windows, completion queues, shared receive
// queues, address handles, multicast groups, and queue pairs of type RC, UC and UD that
// speak RoCEv2.
//
// A Device has no clock, no goroutine and no lock. Its owner passes in the time
// and the packets that arrive, and gets packets, completion events and asynchronous
// events through the functions of Config. So a test can run hours of traffic in
// seconds, and the same seed gives the same run.
//
// Work requests and completions go through rings in memory that the engine shares with
// whoever posts and polls, which may be C: see WorkQueue and CompletionQueue.
//
// # How a message goes
//
// Whoever posts fills a place of a WorkQueue and calls Device.Ring, which gives the queue pair a turn
// (schedule.go). In its turn, within Device.Advance, the requester checks the work request and sends its packets
// (requester.go, ud.go), whose payload is the program's memory. The device that gets them by Device.Receive copies
// them to where they go (responder.go, uc.go, copy.go), adds a completion if there is to be one, and
// puts down an answer, which leaves in the queue pair's next turn. The answer, or a timer (timer.go), comes back to the requester,
// which completes the work request or sends it again.
package engine
