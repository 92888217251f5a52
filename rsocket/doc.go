// SPDX-License-Identifier: Apache-2.0

// Package rsocket provides net.Conn, net.Listener and net.PacketConn over RDMA.
// HTTP, gRPC, TLS and all other code that uses net.Conn runs over it unchanged:
//
//	ln, err := rsocket.Listen("rdma", "192.0.2.1:7471")
//	conn, err := rsocket.Dial("rdma", "192.0.2.1:7471")
//
// It speaks the protocol of librdmacm's rsocket(7). So its peers may be C
// programs that use rsocket(7) or run under librspreload. It is unrelated to
// the protocol of rsocket.io.
//
// Data goes from the writer's buffer to the reader's buffer by RDMA write. Each
// end copies it once: Write copies it to memory from which the device sends,
// and Read copies it from memory to which the peer's device has written.
// ReadFrom and WriteTo avoid these copies. A Conn has no goroutine: a Read or
// Write that has to wait polls for completions itself, and parks on Go's
// netpoller if there are none.
//
// Many connections can share queues, receives and memory to send from; see
// Pool.
//
// The end of file means that the peer has closed its end. If the peer's program
// has died, Read returns an error instead. As with TCP, two ends that only
// write block each other once their buffers are full.
package rsocket
