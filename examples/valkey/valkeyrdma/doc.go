// SPDX-License-Identifier: Apache-2.0

// Package valkeyrdma connects clients of Valkey to the server over RDMA, with
// the protocol of the server's RDMA module. [Dial] returns a net.Conn, so that
// clients need nothing else:
//
//	valkey.NewClient(valkey.ClientOption{
//		InitAddress: []string{"192.0.2.1:6379"},
//		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
//			return valkeyrdma.Dial(ctx, "rdma", address)
//		},
//	})
//
//	redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", Dialer: valkeyrdma.Dial, DialTimeout: time.Minute})
//
// # Protocol
//
// Each end has a buffer, the window, into which the other end writes the bytes
// of the stream, one behind the other, by RDMA writes with immediate data. The
// immediate data is the number of bytes. When the window is full and its bytes
// have been read, its owner offers it again, or other memory. Offers are among
// the control messages, which have 32 bytes; the others are about features, of
// which there are none yet, and about the server being alive.
//
// The client has two windows, and offers one while the program reads the other.
//
// Every write and every control message takes one of 1024 receives that the
// server has posted. The server does not say when it has posted a receive
// again, and a client that runs out of them loses its connection. So a Conn
// asks for the server's features now and then. The server answers when it has
// taken everything before, and so has posted these receives again.
package valkeyrdma
