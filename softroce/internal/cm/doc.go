// SPDX-License-Identifier: Apache-2.0

// Package cm is the connection manager of a node. It does for the device in
// user space what rdma_ucm, rdma_cm and ib_cm do in the kernel: it resolves
// addresses, listens, exchanges the messages that set up and end connections,
// and reports events as rdma_cm does.
//
// It is a state machine without I/O, clock or goroutines. Its caller
//
//   - passes the time to each call that starts a timer,
//   - passes arriving messages to Receive,
//   - calls Advance when the time that Advance asked for has come,
//   - sends the messages that Host.Send gets.
//
// The caller must not call the package concurrently. The methods of Host and
// the notify function of a channel are called within the caller's calls, and
// must not call the package.
//
// # Errors
//
// Errors are of type syscall.Errno: the errno that the kernel returns for the
// same call.
//
// # The states of the queue pair
//
// The caller moves the queue pair of a connection from state to state; this
// package does not. As in librdmacm, it does so when the program takes an
// event:
//
//   - At CONNECT_RESPONSE, the caller takes the queue pair through INIT, RTR
//     and RTS with InitQPAttr, calls Establish, and gives the program
//     ESTABLISHED instead. If the ID has no queue pair, the program gets
//     CONNECT_RESPONSE, and does this itself.
//   - Before Accept, the caller takes the queue pair to RTS.
//   - At REJECTED and before Disconnect, the caller takes the queue pair to the
//     error state.
//
// # Differences from Linux
//
//   - An ID that is bound to a loopback address listens only there. On Linux,
//     it listens on all addresses.
//   - Ports below 1024 need no privilege, and the manager only chooses ports
//     that no other ID uses.
//   - A REP for an unknown connection is rejected (reason 6), so that its
//     sender stops repeating it. Linux does not answer it.
//   - A repeated REQ is answered with the REP again. A REQ counts as repeated
//     until the time wait of its connection is over.
package cm
