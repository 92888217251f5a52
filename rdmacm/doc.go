// SPDX-License-Identifier: Apache-2.0

// Package rdmacm connects programs over RDMA with librdmacm; see rdma_cm(7).
//
// # Connections
//
// [Dial] and [Listen] create a [Conn]. It sends and receives messages, and
// reads and writes the peer's memory; every blocking call takes a context. Use
// the private data of the handshake to exchange what both programs must know at
// the start. A [Receiver] receives messages one after the other.
//
// [DialDatagram] and [ListenDatagram] do the same for datagrams and create a
// [DatagramConn]. [JoinGroup] creates one for a multicast group.
//
// Either end may call Close to end a Conn, which tells the peer. If the peer
// has vanished, transfers fail; an idle end notices after [Config.KeepAlive]. A
// program that exits right after closing a connection should call
// [Conn.Shutdown], which waits until the peer has acknowledged the end.
//
// docs/guide/connections.md in the repository explains which end's Config
// applies, and how long it takes to notice that a peer has vanished.
//
// # Full control
//
// An [EventChannel] delivers the events of its IDs one at a time. The methods
// of [ID] resolve, connect, accept and so on, like the C functions with the
// same names. Where a missing step would make C follow a null pointer, the
// method fails with an error that names the step.
//
// Other ways to use an ID have packages of their own:
//
//   - In [github.com/verbena-go/verbena/rdmacm/endpoint], each call waits
//     until its operation completes, as after rdma_create_ep(3).
//   - In [github.com/verbena-go/verbena/rdmacm/handled], events go to a
//     handler function, as in the kernel.
//
// # Waiting
//
// A goroutine that waits occupies no OS thread: Go's netpoller parks it, and
// its context can end the wait.
//
// Send, Write, Read and atomic operations wait for room in the send queue
// ([Config.SendQueue]), in the order of the calls, and then until the transfer
// is done. If the context ends before the work request is posted, nothing is
// transferred. If it ends later, only the wait ends: the error is a
// [*PendingError], and the caller can wait again.
//
// [Conn.Post] posts a batch of requests in one call and returns. Its [Transfer]
// waits for them.
//
// # Memory
//
// The device owns the memory of a transfer until the transfer is done.
// [Conn.Close] deregisters the memory from [Conn.Alloc]; the program can still
// use its bytes. A peer that knows a region's remote key can access the region
// over every connection in its protection domain. Each connection has a
// protection domain of its own, unless Config.PD is set or Config.Queues is a
// [*Pool]. See docs/guide/memory.md.
//
// # Errors
//
// A failed C call returns an [*ibverbs.Error] with the errno. A call that
// cannot succeed fails without calling C: its [*ibverbs.ArgumentError] names
// the config field or the missing step. If the peer refuses, the error is a
// [*RejectedError] with the reason and private data; other failures reported by
// events are an [*EventError]. A failed transfer returns an [*ibverbs.WCError],
// a failed lookup an [*AddrInfoError]. Without the C library, every call fails
// with an error that matches errors.ErrUnsupported and names what to install.
//
// Where a comment says that an error matches another, such as
// syscall.ECONNRESET, test it with errors.Is.
package rdmacm
