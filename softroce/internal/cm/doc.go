// SPDX-License-Identifier: Apache-2.0

// Package cm is the connection manager of a node. It does for the device what
// rdma_ucm, rdma_cm and ib_cm do in the kernel: it resolves addresses, listens,
// exchanges the messages that make and end a connection, and reports what
// happened as events of rdma_cm.
//
// It is a state machine without I/O, clock or goroutines. Its owner
//
//   - passes the time to each call that starts a timer,
//   - passes arriving messages to Receive,
//   - calls Advance when the time that Advance asked for has come,
//   - sends the messages that Host.Send gets.
//
// Nothing here may be used concurrently: the owner locks. The methods of Host
// and the notify function of a channel run within the owner's calls and must
// not call back into the package.
//
// # Errors
//
// Errors are of type syscall.Errno: the errno that the kernel returns for the
// same call.
//
// # The states of the queue pair
//
// The owner, not this package, moves a connection's queue pair from state to
// state. As in librdmacm, it does so when the program takes an event:
//
//   - At CONNECT_RESPONSE, the owner takes the pair through INIT, RTR and RTS
//     with InitQPAttr, calls Establish, and gives the program ESTABLISHED
//     instead. If the ID has no pair, the owner gives the program
//     CONNECT_RESPONSE, and the program does the same.
//   - Before Accept, the owner takes the pair to RTS.
//   - At REJECTED and before Disconnect, the owner takes the pair to the error
//     state.
//
// # Differences from Linux
//
//   - A loopback address is an address of its own. On Linux, an ID bound to it
//     listens at all addresses.
//   - Ports below 1024 need no privilege, and the manager only chooses ports
//     that no other ID uses.
//   - A REP for an unknown connection is rejected (reason 6), so that its
//     sender stops repeating it. Linux does not answer it.
//   - A repeated REQ is answered with the REP again. It counts as a repetition
//     until the connection's time wait ends.
package cm
