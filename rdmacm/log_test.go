// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// record holds the parts of a log record that the tests check.
type record struct {
	Level, Msg, Local, Peer, Device, Error string
	QP                                     uint32
	Took                                   int64
}

// records collects log records.
type records struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *records) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(b)
}

func (r *records) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (r *records) all(t *testing.T) (all []record) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := json.NewDecoder(bytes.NewReader(r.buf.Bytes())); ; {
		var one record
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, one)
	}
}

func TestLogger(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		end            func(t *testing.T, client *rdmacm.Conn)
		client, server record // of the end
	}{
		"closed": {
			func(t *testing.T, client *rdmacm.Conn) { require.NoError(t, client.Close()) },
			record{Level: "DEBUG"},
			record{Level: "DEBUG", Error: "disconnected"},
		},
		"failed": {
			func(t *testing.T, client *rdmacm.Conn) {
				here := alloc(t, client, 8)
				require.Error(t, client.Read(bounded(t), here.All(), ibverbs.RemoteBuffer{RKey: 1, Len: 8}))
			},
			record{Level: "WARN", Error: "read of 8 bytes from"},
			record{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var atClient, atServer records
			serverConfig := &rdmacm.Config{Logger: atServer.logger(), KeepAlive: time.Second} // by which it may notice the end
			client, server := connect(t, d.IPv4, &rdmacm.Config{Logger: atClient.logger()}, serverConfig)
			device, qp := client.PD().Device().Name(), client.QP().Num()
			local, peer := client.LocalAddr().String(), client.RemoteAddr().String()
			up := atClient.all(t)
			require.Len(t, up, 1)
			require.Positive(t, up[0].Took)
			up[0].Took = 0
			require.Equal(t, record{Level: "DEBUG", Msg: "rdma connected", Local: local, Peer: peer, Device: device, QP: qp}, up[0])
			up = atServer.all(t)
			require.Len(t, up, 1)
			require.Equal(t, "rdma accepted", up[0].Msg)
			require.Equal(t, local, up[0].Peer)

			tt.end(t, client)
			awaitEnd(t, server)
			require.NoError(t, server.Close())
			for end, want := range map[*records]record{&atClient: tt.client, &atServer: tt.server} {
				var all []record
				require.Eventually(t, func() bool { // Done is closed a moment before
					all = end.all(t)
					return len(all) == 2
				}, patience, time.Millisecond)
				require.Equal(t, "rdma connection ended", all[1].Msg)
				require.Contains(t, all[1].Error, want.Error)
				if want.Level != "" { // a failure at the other end is told in several ways
					require.Equal(t, want.Level, all[1].Level, all[1].Error)
				}
			}
		})
	}
}

// A failed connection is logged where Dial or Accept returns the error. It has
// no record of its end.
func TestLoggerOfFailure(t *testing.T) {
	d := needDevice(t)
	var log records
	config := &rdmacm.Config{Logger: log.logger()}
	_, err := rdmacm.Dial(bounded(t), d.IPv4.String()+":1", inPool(config))
	require.Error(t, err)
	all := log.all(t)
	require.Len(t, all, 1)
	require.Equal(t, record{Level: "DEBUG", Msg: "rdma dial failed", Peer: d.IPv4.String() + ":1", Error: all[0].Error}, all[0])
	require.ErrorContains(t, err, all[0].Error)

	ln, err := rdmacm.Listen(bounded(t), d.IPv4.String()+":0", nil)
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithCancel(bounded(t))
	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		dialed <- err
	}()
	request, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	broken := errors.New("no coffee")
	config.Setup = func(*rdmacm.Conn) error { return broken }
	_, err = request.Accept(bounded(t), inPool(config))
	require.ErrorIs(t, err, broken)
	require.Error(t, <-dialed)
	cancel()
	all = log.all(t)
	require.Len(t, all, 2)
	require.Equal(t, "rdma accept failed", all[1].Msg)
	require.Contains(t, all[1].Error, "no coffee")
}

// A connection with a record of its beginning has a record of its end, however
// soon it ends. The record of the end comes second.
func TestLoggerPairsRecords(t *testing.T) {
	d := needDevice(t)
	var atClient, atServer records
	closing := func(ctx context.Context, req *rdmacm.Request) {
		if conn, err := req.Accept(ctx, inPool(&rdmacm.Config{Logger: atServer.logger()})); err == nil {
			_ = conn.Close()
		}
	}
	waiting := func(ctx context.Context, req *rdmacm.Request) {
		if conn, err := req.Accept(ctx, inPool(&rdmacm.Config{Logger: atServer.logger()})); err == nil {
			_ = conn.Wait(ctx)
			_ = conn.Close()
		}
	}
	for name, handle := range map[string]func(context.Context, *rdmacm.Request){"server closes": closing, "client closes": waiting} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			ln := listenOn(t, d.IPv4)
			serving, cancel := context.WithCancel(ctx)
			served := inBackground(func() error { return ln.Serve(serving, handle) })
			var clients sync.WaitGroup
			for range 8 {
				clients.Go(func() {
					for range 25 {
						if conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{Logger: atClient.logger()})); err == nil {
							_ = conn.Close()
						}
					}
				})
			}
			clients.Wait()
			require.NoError(t, ctx.Err())
			cancel()
			require.NoError(t, <-served)
		})
	}
	for name, log := range map[string]*records{"client": &atClient, "server": &atServer} {
		var open map[record]int
		var early int
		paired := func() bool {
			open, early = map[record]int{}, 0
			for _, r := range log.all(t) {
				what := record{Local: r.Local, Peer: r.Peer, QP: r.QP}
				switch r.Msg {
				case "rdma connected", "rdma accepted":
					open[what]++
				case "rdma connection ended":
					if open[what]--; open[what] < 0 {
						early++
					}
				}
			}
			maps.DeleteFunc(open, func(_ record, n int) bool { return n == 0 })
			return len(open) == 0
		}
		for end := time.Now().Add(patience); !paired() && time.Now().Before(end); {
			runtime.Gosched()
		}
		require.Zero(t, len(open), "%s: connections without a record of the end", name)
		require.Zero(t, early, "%s: ends before their beginning", name)
	}
}

// closes is a log handler that closes the connection whose end it logs.
type closes struct {
	slog.Handler
	conn chan *rdmacm.Conn
	errs chan error
}

func (c *closes) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "rdma connection ended" {
		c.errs <- (<-c.conn).Close()
	}
	return nil
}

// A log handler may close the connection that it logs, even if it is the last.
func TestLoggerCloses(t *testing.T) {
	d := needDevice(t)
	for name, end := range map[string]func(here, peer *rdmacm.Conn) error{
		"closed here":  func(here, _ *rdmacm.Conn) error { return here.Close() },
		"closed there": func(_, peer *rdmacm.Conn) error { return peer.Close() },
		"failed": func(here, _ *rdmacm.Conn) error {
			if here.Write(bounded(t), ibverbs.RemoteBuffer{RKey: 1, Len: 8}, alloc(t, here, 8).All()) == nil {
				return errors.New("the peer's memory has another key")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &closes{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}), make(chan *rdmacm.Conn, 1), make(chan error, 1)}
			here, peer := connect(t, d.IPv4, &rdmacm.Config{Logger: slog.New(c)}, nil)
			c.conn <- here
			ended := inBackground(func() error { return end(here, peer) })
			require.NoError(t, cmtest.Take(t, ended, "the end"))
			require.NoError(t, cmtest.Take(t, c.errs, "Close of the handler"))
		})
	}
}
