// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

var keys = map[string]key{
	"with a GID": {
		LID: 0, ReadDepth: 16, QPN: 0x11, PSN: 0xabcdef, SRQ: 0,
		Buffer: ibverbs.RemoteBuffer{RKey: 0x55, Addr: 0x7f0011223344}, GID: ibverbs.GID{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 1},
	},
	"without": {
		LID: 0xbeef, ReadDepth: 1, QPN: 0xffffff, PSN: 1, SRQ: 7,
		Buffer: ibverbs.RemoteBuffer{RKey: 0xffffffff, Addr: 0xffffffffffffffff},
	},
}

// The texts are those that perftest's programs send.
func TestKeys(t *testing.T) {
	texts := map[string]string{
		"with a GID": "0000:0010:000011:abcdef:00000055:00007f0011223344:00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:01:00000000:\x00",
		"without":    "beef:0001:ffffff:000001:ffffffff:ffffffffffffffff:00000007\x00",
	}
	for name, k := range keys {
		require.Equal(t, texts[name], string(k.text()), name)
		got, err := parseKey(k.text())
		require.NoError(t, err, name)
		require.Equal(t, k, got, name)
	}
	require.Len(t, keys["with a GID"].text(), keysSizeGID)
	require.Len(t, keys["without"].text(), keysSize)
	for _, text := range []string{"", "1:2", "beef:0001:ffffff:000001:100000000:0:0", "x:0:0:0:0:0:0"} {
		_, err := parseKey([]byte(text))
		require.ErrorContains(t, err, "the peer's key", text)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, k := range keys {
		f.Add(k.text())
	}
	f.Add([]byte(":::::::"))
	f.Fuzz(func(t *testing.T, message []byte) {
		k, err := parseKey(message)
		if err != nil {
			return
		}
		if k.QPN < 1<<24 && k.PSN < 1<<24 && k.LID < 1<<16 && k.ReadDepth < 1<<16 {
			again, err := parseKey(k.text())
			require.NoError(t, err)
			require.Equal(t, k, again)
		}
	})
}

// pair returns both ends of a control connection.
func pair(t *testing.T, ctx context.Context) (client, server *control) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	accepted, err := ln.Accept()
	require.NoError(t, err)
	client, _ = newControl(ctx, conn, true)
	server, _ = newControl(ctx, accepted, false)
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// both runs the two sides of something.
func both(client, server func() error) error {
	done := make(chan error)
	go func() { done <- server() }()
	err := client()
	return errors.Join(err, <-done)
}

func TestControl(t *testing.T) {
	client, server := pair(t, t.Context())
	client.plan, server.plan = newPlan(&someTest, Where{}), newPlan(&someTest, Where{})
	client.mine, server.mine = []key{keys["with a GID"]}, []key{keys["with a GID"]}
	server.mine[0].QPN = 0x22
	row := Row{Bytes: 64, Iterations: 5000, Peak: 2.5, Average: 1.25, MessageRate: 0.5}
	require.NoError(t, both(func() error {
		mtu, err := client.settle(3)
		require.NoError(t, err)
		require.Equal(t, ibverbs.MTU(5), mtu)
		k, err := client.keys(0)
		require.NoError(t, err)
		require.Equal(t, server.mine[0], k)
		_, err = client.report(row)
		require.NoError(t, err)
		return client.finish()
	}, func() error {
		mtu, err := server.settle(5)
		require.NoError(t, err)
		require.Equal(t, ibverbs.MTU(3), mtu)
		k, err := server.keys(0)
		require.NoError(t, err)
		require.Equal(t, client.mine[0], k)
		theirs, err := server.report(Row{})
		require.NoError(t, err)
		require.Equal(t, row.withGigabits(), theirs)
		return server.finish()
	}))
	require.NoError(t, client.Close())
	<-server.gone
}

// What is no number is not measured, and JSON has no word for it.
func TestReportOfNoNumbers(t *testing.T) {
	client, server := pair(t, t.Context())
	require.NoError(t, both(func() error {
		_, err := client.report(Row{Bytes: 2, Iterations: 5, Peak: math.Inf(1), Average: math.NaN(), MessageRate: math.Inf(-1)})
		return err
	}, func() error {
		theirs, err := server.report(Row{})
		require.NoError(t, err)
		require.Equal(t, Row{Bytes: 2, Iterations: 5}, theirs)
		return json.NewEncoder(io.Discard).Encode(Result{Rows: []Row{theirs}})
	}))
}

// A peer that is done, as it wants to go on to what comes next, has sent all
// that it will.
func TestPeerIsAhead(t *testing.T) {
	client, server := pair(t, t.Context())
	client.mine, server.mine = []key{keys["without"]}, []key{keys["without"]}
	require.NoError(t, server.ahead())
	synced := make(chan error, 1)
	go func() { synced <- client.sync() }()
	for server.unread.Load() == 0 {
		runtime.Gosched()
	}
	require.NoError(t, server.ahead(), "not at once")
	server.started = server.started.Add(-patience)
	require.ErrorContains(t, server.ahead(), "give both ends the same test and number of messages (-n) or duration (-D)")
	require.NoError(t, server.sync())
	require.NoError(t, <-synced)
	require.NoError(t, server.ahead())
}

// perftest's -q sends a key for each queue pair, where one would say that it is
// as far as this end.
func TestSeveralQueuePairs(t *testing.T) {
	client, server := pair(t, t.Context())
	client.mine, server.mine = []key{keys["without"]}, []key{keys["without"]}
	server.peerQPNs = []uint32{client.mine[0].QPN}
	require.NoError(t, both(client.sync, server.sync))
	client.mine[0].QPN--
	require.ErrorContains(t, both(client.sync, server.sync), "give both ends the same -q")
}

func TestOldPeer(t *testing.T) {
	for version, text := range map[string]string{"5.60": "verbena perf supports 5.70 and later", "": "verbena perf supports 5.70 and later", "six": "verbena perf supports 5.70 and later"} {
		client, server := pair(t, t.Context())
		err := both(func() error { _, err := client.settle(3); return err }, func() error {
			_, err := server.exchange(append([]byte(version), make([]byte, versionSize-len(version))...))
			return err
		})
		require.ErrorContains(t, err, text)
	}
}

func TestControlEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, _ := pair(t, ctx)
	done := make(chan error)
	go func() { done <- client.sync() }()
	cancel()
	require.Error(t, <-done)
}

func TestPeerHasGone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	c, ctx := newControl(t.Context(), conn, true)
	accepted, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), errGone)
	require.ErrorIs(t, c.sync(), io.EOF)
	require.NoError(t, c.Close())
}
