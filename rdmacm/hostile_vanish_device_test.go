package rdmacm_test

import (
	"net/netip"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// An end that is idle notices that its peer's queue pair answers nothing any
// more, as when the peer's host is gone, and that another's answers.
func TestKeepAlive(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		retries int
		is      error
	}{
		"retried for ever":  {7, syscall.ETIMEDOUT}, // so Soft-RoCE understands 7
		"retried only once": {1, ibverbs.WCRetryExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			const often = 500 * time.Millisecond
			ln := listenOn(t, d.IPv4)
			result := acceptOne(bounded(t), ln, &rdmacm.Config{KeepAlive: -1})
			client, err := rdmacm.Dial(bounded(t), ln.Addr().String(), &rdmacm.Config{
				KeepAlive: often, RetryCount: tt.retries, AckTimeout: time.Millisecond, SendQueue: 1,
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close()) }()
			a := take(t, result, "the server's end")
			require.NoError(t, a.err)
			server := a.conn
			defer func() { require.NoError(t, server.Close()) }()
			for range 5 {
				rdmacm.CheckPeer(client)
				require.NoError(t, client.Err(), "the peer is there, and has posted no receive")
			}
			start := time.Now()
			require.NoError(t, server.QP().SetError())
			take(t, client.Done(), "the end")
			t.Logf("after %v: %v", time.Since(start), client.Err())
			require.ErrorIs(t, client.Err(), tt.is)
			_, err = client.Recv(bounded(t))
			require.ErrorIs(t, err, tt.is, "why it is over")
		})
	}
}

// A peer that is a program of C's answers, too, and does not notice.
func TestKeepAliveOfCPeer(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	server := exec.Command("rping", "-s", "-a", d.IPv4.String(), "-p", "7998")
	require.NoError(t, server.Start())
	defer func() { _ = server.Wait() }() // it fails, as the client says nothing
	defer func() { _ = server.Process.Kill() }()
	var client *rdmacm.Conn
	soon(t, "rping listens", func() (ok bool) {
		var err error
		client, err = rdmacm.Dial(bounded(t), netip.AddrPortFrom(d.IPv4, 7998).String(), nil)
		return err == nil
	})
	for range 5 {
		rdmacm.CheckPeer(client)
		require.NoError(t, client.Err())
	}
	require.NoError(t, client.Shutdown(bounded(t)))
}

// A send that waits for the peer's program to post a receive says nothing of
// whether the peer is there.
func TestKeepAliveBehindSend(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{KeepAlive: 5 * time.Second}, nil)
	ctx := bounded(t)
	sent := inBackground(func() error { return client.Send(ctx) })
	soon(t, "the send", func() bool { return rdmacm.Sending(client) > 0 })
	for range 10 {
		rdmacm.CheckPeer(client)
		require.NoError(t, client.Err())
	}
	_, err := server.Recv(ctx)
	require.NoError(t, err)
	require.NoError(t, take(t, sent, "the send's end"))
	require.NoError(t, client.Err())
}

// When the way to the peer is cut, both idle ends notice, each by itself.
func TestIdleEndsNoticeThatPeerVanished(t *testing.T) {
	const often = time.Second
	needTwoHosts(t)
	ctx := bounded(t)
	server := startPeer(t, "server", netip.AddrPortFrom(there, 0).String(), often.String())
	conn, err := rdmacm.Dial(ctx, server.hear(patience), &rdmacm.Config{KeepAlive: often})
	require.NoError(t, err)
	require.Equal(t, "up", server.hear(patience))
	mend := cut(t)
	start := time.Now()
	take(t, conn.Done(), "the end here")
	t.Logf("noticed here after %v: %v", time.Since(start), conn.Err())
	require.ErrorIs(t, conn.Err(), syscall.ETIMEDOUT)
	require.Equal(t, "over: peer unreachable: connection timed out", server.hear(patience))
	t.Logf("and there after %v", time.Since(start))
	mend()
	require.NoError(t, conn.Shutdown(bounded(t)))
}
