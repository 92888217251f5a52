// SPDX-License-Identifier: Apache-2.0

// Package rsocket provides net.Conn and net.Listener over RDMA. HTTP, gRPC, TLS
// and everything else that uses net.Conn runs over it unchanged:
//
//	ln, err := rsocket.Listen("rdma", "192.0.2.1:7471")
//	conn, err := rsocket.Dial("rdma", "192.0.2.1:7471")
//
// On the wire it speaks the protocol of librdmacm's rsocket(7), so that C
// programs which use that, or run under librspreload, are peers. It is
// unrelated to the protocol of rsocket.io.
//
// Data goes from the writer's buffer to the reader's by RDMA write. Each end
// copies it once: Write into memory that the device sends from, Read out of
// memory that the peer's device has written to. ReadFrom and WriteTo avoid
// these copies. A Conn has no goroutine: a Read or Write that has to wait polls
// for completions itself, and parks on Go's netpoller when there are none.
//
// Many connections can share queues, receives and memory to send from: see
// Pool.
//
// An end of file means that the peer has closed its end in an orderly way. If
// the peer has died, Read returns an error instead. As with TCP, two ends that
// only write block each other when their buffers are full.
package rsocket
