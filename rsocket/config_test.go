// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// Listen fails for what every Accept would fail for, where the peers alone
// would hear of it, and a dial does not fall back to TCP for it.
func TestWrongConfig(t *testing.T) {
	needDevice(t)
	for field, config := range map[string]rsocket.Config{
		"Config.AckTimeout is -1ns, not from 0": {AckTimeout: -1},
		"Config.AckTimeout is 3h0m0s, not from": {AckTimeout: 3 * time.Hour},
	} {
		lc := rsocket.ListenConfig{Config: config}
		_, err := lc.Listen(bounded(t), "rdma", ":0")
		require.ErrorContains(t, err, field)
		isOpError(t, err, "listen", syscall.EINVAL)
		d := rsocket.Dialer{Config: config, Fallback: func(context.Context, string, string, error) (net.Conn, error) {
			t.Error("fell back")
			return nil, net.ErrClosed
		}}
		_, err = d.DialContext(bounded(t), "rdma", "nothing.invalid:1")
		require.ErrorContains(t, err, field)
		isOpError(t, err, "dial", syscall.EINVAL)
	}
}

// Numbers that are out of the range of sizes and times are limited or stand for
// none, as the fields say: connections with them work.
func TestOutOfRangeConfig(t *testing.T) {
	for name, config := range map[string]rsocket.Config{
		"negative": {
			ReadBuffer: -1, WriteBuffer: -1, SendQueue: -1, RecvQueue: -1, MaxInline: -1, Spin: -1, KeepAlive: -1, HandshakeTimeout: -1,
		},
		"large": {SendQueue: 1 << 40, RecvQueue: 1 << 40, MaxInline: 1 << 40},
		"pool":  {Pool: &rsocket.Pool{Conns: -1, Receives: -1}, SendQueue: -1, RecvQueue: -1, WriteBuffer: -1},
		"large pool": {
			Pool: &rsocket.Pool{Conns: 1 << 40, Receives: 1 << 40}, SendQueue: 64, RecvQueue: 64,
		},
	} {
		t.Run(name, func(t *testing.T) {
			needDevice(t)
			a, b := pair(t, config, config)
			echo(t, a, b)
		})
	}
}

// A listener for datagrams on a device that has none fails.
func TestListenPacketOnIWARP(t *testing.T) {
	d := needDevice(t)
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	for _, device := range devices {
		transport := &device.Raw().Device.TransportType
		defer func(was libibverbs.TransportType) { *transport = was }(*transport)
		*transport = libibverbs.IBV_TRANSPORT_IWARP
	}
	_, err = rsocket.ListenPacket("rdma", netip.AddrPortFrom(d.IPv4, 0).String())
	isOpError(t, err, "listen", errors.ErrUnsupported)
	require.ErrorContains(t, err, "the device uses iWARP")
}
