// SPDX-License-Identifier: Apache-2.0

// Package endpoint provides connections whose steps are calls that wait for the
// result, like those of rdma_create_ep(3) and of rdma_verbs.h in C. It suits
// programs that do one thing at a time, and ports of such programs from C.
// [rdmacm.Dial] and [rdmacm.Listen] do more with less code.
//
// [Create] creates an [Endpoint] and its queue pair from an address that
// [rdmacm.LookUp] or [rdmacm.GetAddrInfo] has found. A client then registers
// memory, posts receives and connects:
//
//	info, err := rdmacm.LookUp(ctx, "", "192.0.2.1", "7471", nil)
//	ep, err := endpoint.Create(ctx, info, nil, &ibverbs.QPConfig{SendQueue: 1, RecvQueue: 1, SignalAll: true})
//	memory, err := ep.RegMsgs(make([]byte, 64))
//	err = ep.PostRecv(0, memory.All())
//	_, err = ep.Connect(ctx, rdmacm.ConnParam{})
//	wc, err := ep.RecvComp(ctx)
//
// A server calls [Endpoint.Listen], and [Endpoint.GetRequest] for each
// connection. The endpoint of a request has a queue pair, too;
// [Endpoint.Accept] waits until the connection is up.
//
// An endpoint closes everything that it has created. A goroutine that waits
// occupies no OS thread. [Endpoint.Migrate] turns an endpoint into an
// [rdmacm.ID] on an event channel, and [FromID] does the reverse. Errors are
// like those of package rdmacm.
package endpoint
