// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestDatagramRejected(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenDatagram(t, d.IPv4)
	dial := func() <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), &rdmacm.DatagramConfig{PrivateData: []byte("may I?")})
			result <- err
		}()
		return result
	}
	check := func(err error, reason rdmacm.Reason, text string) *rdmacm.RejectedError {
		t.Helper()
		var rejected *rdmacm.RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, reason, rejected.Reason)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, text)
		return rejected
	}

	refused := dial()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.Equal(t, padded([]byte("may I?"), maxDatagramRequest), req.PrivateData())
	require.Equal(t, ln.Addr(), req.LocalAddr())
	require.Equal(t, d.IPv4, req.RemoteAddr().Addr())
	require.Equal(t, rdmacm.EventConnectRequest, req.Event().Type)
	require.NoError(t, req.Reject([]byte("no")))
	rejected := check(<-refused, rdmacm.ReasonConsumer, "dial "+ln.Addr().String()+": connection rejected: refused by the peer's program")
	require.Equal(t, padded([]byte("no"), maxDatagramReply), rejected.PrivateData)
	require.ErrorIs(t, req.Reject(nil), os.ErrClosed)
	_, err = req.Accept(ctx, nil)
	require.ErrorIs(t, err, os.ErrClosed)

	// A listener that closes refuses the dials that wait. Later dials find no
	// listener.
	refused = dial()
	require.Eventually(t, func() bool { return rdmacm.WaitingDatagrams(ln) == 1 }, patience, 1)
	require.NoError(t, ln.Close())
	check(<-refused, rdmacm.ReasonConsumer, "refused by the peer's program")
	check(<-dial(), rdmacm.ReasonNoListener, "no program listens on the port")
	_, err = ln.Accept(ctx)
	require.ErrorIs(t, err, os.ErrClosed)

	// A listener for connections does not take datagrams.
	tcp := listenOn(t, d.IPv4)
	_, err = rdmacm.DialDatagram(ctx, tcp.Addr().String(), nil)
	check(err, rdmacm.ReasonNoListener, "no program listens on the port")
}

func TestDatagramPrivateDataLimits(t *testing.T) {
	d := needDevice(t)
	ln := listenDatagram(t, d.IPv4)
	data := make([]byte, maxDatagramRequest+1)
	for i := range data {
		data[i] = byte(i + 1)
	}
	_, on := datagrams(t, d.IPv4, nil, nil)
	ask := func(n int) (<-chan error, *[]byte) {
		result, got := make(chan error, 1), new([]byte)
		ctx := bounded(t)
		go func() {
			conn, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), &rdmacm.DatagramConfig{PrivateData: data[:n]})
			if conn != nil {
				*got = conn.PeerData()
				err = conn.Close()
			}
			result <- err
		}()
		return result, got
	}
	near := func(n, limit int) bool { return n >= limit-4 && n <= limit+4 }
	for n := range maxDatagramRequest + 1 {
		if !testdevice.Soft() && !near(n, 0) && !near(n, maxDatagramReply) && !near(n, maxDatagramRequest) {
			continue // an emulated guest needs half a minute for all lengths
		}
		dialed, got := ask(n)
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		require.Equal(t, padded(data[:n], maxDatagramRequest), req.PrivateData())
		reply := data[:min(n, maxDatagramReply)]
		if n%2 == 0 {
			require.NoError(t, req.AcceptOn(on, reply))
			require.NoError(t, <-dialed)
			require.Equal(t, padded(reply, maxDatagramReply), *got)
			continue
		}
		require.NoError(t, req.Reject(reply))
		var rejected *rdmacm.RejectedError
		require.ErrorAs(t, <-dialed, &rejected)
		require.Equal(t, padded(reply, maxDatagramReply), rejected.PrivateData)
	}

	dialed, _ := ask(maxDatagramRequest + 1)
	err := <-dialed
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "private data has 181 bytes, but this device's connection request carries at most 180")
	for name, answer := range map[string]func(*rdmacm.DatagramRequest, *rdmacm.DatagramConn) error{
		"acceptance carries at most 136": func(r *rdmacm.DatagramRequest, _ *rdmacm.DatagramConn) error {
			_, err := r.Accept(bounded(t), &rdmacm.DatagramConfig{PrivateData: data[:maxDatagramReply+1]})
			return err
		},
		"private data has 137 bytes, but this device's acceptance": func(r *rdmacm.DatagramRequest, on *rdmacm.DatagramConn) error {
			return r.AcceptOn(on, data[:maxDatagramReply+1])
		},
		"rejection carries at most 136": func(r *rdmacm.DatagramRequest, _ *rdmacm.DatagramConn) error {
			return r.Reject(data[:maxDatagramReply+1])
		},
	} {
		dialed, _ := ask(0)
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		err = answer(req, on)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, name)
		require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED, "the peer is told")
	}
}

func TestDatagramBadConfig(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenDatagram(t, d.IPv4)
	setupErr := errors.New("no memory left")
	other, err := ibverbs.Open(d.Name)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	pd, err := other.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	for name, tt := range map[string]struct {
		config rdmacm.DatagramConfig
		want   error
	}{
		"negative queue":    {rdmacm.DatagramConfig{SendQueue: -1}, syscall.EINVAL},
		"negative receives": {rdmacm.DatagramConfig{RecvQueue: -1}, syscall.EINVAL},
		"negative segments": {rdmacm.DatagramConfig{Segments: -1}, syscall.EINVAL},
		"huge queue":        {rdmacm.DatagramConfig{RecvQueue: 1 << 30}, syscall.EINVAL},
		"Setup":             {rdmacm.DatagramConfig{Setup: func(*rdmacm.DatagramConn) error { return setupErr }}, setupErr},
		"other device's PD": {rdmacm.DatagramConfig{PD: pd}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), &tt.config)
			require.ErrorIs(t, err, tt.want)
			dialed := make(chan error, 1)
			go func() {
				_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
				dialed <- err
			}()
			req, err := ln.Accept(ctx)
			require.NoError(t, err)
			_, err = req.Accept(ctx, &tt.config)
			require.ErrorIs(t, err, tt.want)
			require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
		})
	}
}
