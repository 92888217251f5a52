// SPDX-License-Identifier: Apache-2.0

// Package mlx5 makes queue pairs for the Dynamically Connected transport (DC)
// of NVIDIA's ConnectX-4 and later adapters, and returns the adapters' limits.
//
// DC is as reliable and ordered as a reliable connection, but programs do not
// connect. An initiator (DCI) names the target of each request by an address
// handle and the target's number and key. The adapter connects the two while
// there are requests. One target (DCT) receives from any number of initiators,
// so a program talks to thousands of peers with a handful of queue pairs.
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
// A target takes receives from its shared receive queue. Post receives and poll
// completions with package ibverbs.
//
// The package calls libmlx5.so.1, a part of rdma-core, and opens it with the
// first call. Without the library, without cgo, and on a device of another
// driver, calls fail with an error matching errors.ErrUnsupported. Package
// generated/libmlx5 has all of the library's functions.
//
// The package has not run on an adapter. Its tests replace libmlx5.so.1 by a
// library that records the arguments of each call, which were compared with
// rdma-core's and Linux's sources.
package mlx5
