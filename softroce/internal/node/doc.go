// SPDX-License-Identifier: Apache-2.0

// Package node is this process as a node of a network. It owns the engine, the
// connection manager and the links: it locks them, passes in the time, and
// moves packets between them.
//
// Its parts are the devices; the path, which every packet takes, with faults,
// hostile mode and captures; the network, which is this machine's processes or
// UDP; the groups; the connections; and the worker, the goroutine that does
// what is due.
//
// The package needs no C. The objects that programs hold belong to package
// capi, which is the node's Program.
package node
