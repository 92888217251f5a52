// SPDX-License-Identifier: Apache-2.0

// Package csocket implements the functions of C's rsocket(7) over package
// rsocket. Only the shared library for programs that are not written in Go has
// them.
//
// A socket has a descriptor of its own, so that its number is the number of
// nothing else, and an entry in a table. Calls do not wait in package rsocket:
// a thread that has to wait does so in poll(2) or epoll_wait(2), on the
// descriptors of the connections' completion channels and of whatever else the
// program waits for, and takes the completions itself. No goroutine takes part.
// Only connecting, accepting and sockets for datagrams have goroutines, which
// wake the waiting threads through an eventfd.
package csocket
