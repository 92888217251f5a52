// SPDX-License-Identifier: Apache-2.0

// Package efa makes queue pairs for Scalable Reliable Datagrams (SRD), the
// transport of AWS's Elastic Fabric Adapter, and tells what the adapter can do.
//
// An SRD queue pair sends to any number of peers, each named by an address
// handle, the number of its queue pair and its key, as with unreliable
// datagrams; but messages arrive, and a completion says so. They may arrive in
// another order than they were sent in. A message may be as long as a packet,
// RDMA reads and writes may be as long as [Attr].MaxRDMASize.
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
// The functions are those of libefa.so.1, which comes with rdma-core. It is
// opened with the first call. Without it, without cgo, and on a device of
// another driver, calls fail with an error matching errors.ErrUnsupported.
// Package generated/libefa has all of the library's functions.
//
// No adapter was at hand when this was written: it was tested with a library
// in the place of libefa.so.1 that writes down what it is called with, and what
// it is called with was compared with rdma-core's sources.
package efa
