// SPDX-License-Identifier: Apache-2.0

// Package mlx5 makes queue pairs for the Dynamically Connected transport (DC)
// of NVIDIA's ConnectX-4 and later adapters, and tells what an adapter can do.
//
// DC is reliable and ordered as reliable connections are, but without
// connecting: an initiator (DCI) names the target of each request, by an
// address handle and the target's number and key, and the adapter connects the
// two for as long as requests go there. One target (DCT) takes what any number
// of initiators send. So a program talks to thousands of peers with a handful
// of queue pairs.
//
//	dct, err := mlx5.CreateDCT(pd, mlx5.DCTConfig{CQ: cq, SRQ: srq, Key: key})
//	...
//	err = dct.Start(mlx5.DCTPath{Port: 1, MTU: ibverbs.MTU1024, Access: ibverbs.AccessRemoteWrite, From: from})
//
//	dci, err := mlx5.CreateDCI(pd, mlx5.DCIConfig{CQ: cq, SendQueue: 64})
//	...
//	err = dci.Start(mlx5.DCIPath{Port: 1, MTU: ibverbs.MTU1024})
//	...
//	err = dci.Post(mlx5.Request{Op: mlx5.Send, To: peer, Segments: []ibverbs.Segment{mr.All()}})
//
// Receives of a target are those of its shared receive queue; they are posted,
// and completions polled, with package ibverbs.
//
// The functions are those of libmlx5.so.1, which comes with rdma-core. It is
// opened with the first call. Without it, without cgo, and on a device of
// another driver, calls fail with an error matching errors.ErrUnsupported.
// Package generated/libmlx5 has all of the library's functions.
//
// No adapter was at hand when this was written: it was tested with a library in
// the place of libmlx5.so.1 that writes down what it is called with, and what
// it is called with was compared with rdma-core's and Linux's sources.
package mlx5
