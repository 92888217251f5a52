// SPDX-License-Identifier: Apache-2.0

// Package efa makes queue pairs for Scalable Reliable Datagrams (SRD), the
// transport of AWS's Elastic Fabric Adapter, and returns the adapter's limits.
//
// An SRD queue pair sends to any number of peers. As with unreliable datagrams,
// an address handle, the number of the peer's queue pair and its key name the
// peer. Unlike these, messages are acknowledged: a completion without an error
// means that the message has arrived. Messages may arrive out of order. A
// message fits into one packet; an RDMA read or write has at most
// [Attr].MaxRDMASize bytes.
//
//	qp, err := efa.CreateQP(pd, efa.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 64, RecvQueue: 64})
//	...
//	err = qp.Start(efa.Path{Port: 1, QKey: key})
//	...
//	err = qp.Post(efa.Request{Op: efa.Send, To: peer, Segments: []ibverbs.Segment{mr.All()}})
//
// Receives are posted, and completions polled, with package ibverbs, on
// [QP.Verbs] and on completion queues of [ibverbs.Device.CreateCQ].
//
// The package calls libefa.so.1, a part of rdma-core, and opens it with the
// first call. Without the library, without cgo, and on a device of another
// driver, calls fail with an error matching errors.ErrUnsupported. Package
// generated/libefa has all of the library's functions.
//
// The package has not run on an adapter. Its tests replace libefa.so.1 by a
// library that records the arguments of each call, which were compared with
// rdma-core's sources.
package efa
