// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

func TestConn(t *testing.T) { requireConn(t, rsocket.Config{}) }

// Ends that share queues, receives and memory do the same.
func TestConnOfPool(t *testing.T) { requireConn(t, rsocket.Config{Pool: new(rsocket.Pool)}) }

func requireConn(t *testing.T, config rsocket.Config) {
	d := cmtest.NeedDevice(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		lc, dialer := rsocket.ListenConfig{Config: config}, rsocket.Dialer{Config: config}
		ln, err := lc.Listen(t.Context(), "rdma", netip.AddrPortFrom(d.IPv4, 0).String())
		if err != nil {
			return nil, nil, nil, err
		}
		defer func() { _ = ln.Close() }()
		a, err := dialer.Dial("rdma", ln.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		b, err := ln.Accept()
		if err != nil {
			_ = a.Close()
			return nil, nil, nil, err
		}
		return a, b, func() {
			_ = a.Close()
			_ = b.Close()
		}, nil
	})
}
