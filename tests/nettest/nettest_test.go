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

func TestConn(t *testing.T) {
	d := cmtest.NeedDevice(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		ln, err := rsocket.Listen("rdma", netip.AddrPortFrom(d.IPv4, 0).String())
		if err != nil {
			return nil, nil, nil, err
		}
		defer func() { _ = ln.Close() }()
		a, err := rsocket.Dial("rdma", ln.Addr().String())
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
