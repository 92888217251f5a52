// SPDX-License-Identifier: Apache-2.0

// Package cm is the connection manager of a node: what the kernel's rdma_ucm, rdma_cm and
// ib_cm are to librdmacm. It resolves addresses, listens, exchanges the messages that make
// and end a connection, and says what happened with the events of rdma_cm.
//
// It is a state machine: it does no I/O, has no clock and starts no goroutine. Its owner
// gives it the time with each call that starts a timer, hands it the messages that arrive
// (Receive), calls Advance when the time that it asked for has come, and sends what it gives
// to Host.Send. Nothing here may be used concurrently; the owner locks. A Host and a
// channel's notify are called within the owner's own calls and must not call back.
//
// # Errors
//
// Errors are of type syscall.Errno, those that the kernel returns for the same call.
//
// # Who moves the queue pair
//
// Not this package. As with C's library, a connection's queue pair follows the events when
// the program takes them: at CONNECT_RESPONSE the owner takes the pair through INIT, RTR and RTS
// with InitQPAttr, calls Establish and shows the program ESTABLISHED instead. Of an ID without
// a pair it shows CONNECT_RESPONSE, and the program does the same. Before Accept, the owner takes the
// pair to RTS; at REJECTED and before Disconnect, to the error state.
//
// # Where it differs from Linux
//
//   - Loopback addresses are addresses like others, and not another word for any address.
//   - Ports below 1024 need no privilege, and a port that the manager chooses is one
//     that no other ID uses.
//   - A REP for a connection that is not known any more is rejected (reason 6) rather than
//     left without an answer, so that its sender need not repeat it until it gives up.
//   - A repeated REQ is answered with the REP again, and known as a repetition
//     until the connection's time wait ends.
package cm
