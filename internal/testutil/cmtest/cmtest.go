// SPDX-License-Identifier: Apache-2.0

// Package cmtest has functions that the tests of rdmacm and of the packages in
// its directory share.
package cmtest

import (
	"context"
	"io"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// Patience limits the time that a test waits for something that must happen. It
// is long, since an emulated guest on a busy machine is slow.
const Patience = 3 * time.Minute

// NeedDevice returns the device to test with. It makes the test fail if
// objects, goroutines or files are left at its end.
func NeedDevice(t testing.TB) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	warmUp(t, d.IPv4)
	testdevice.NoLeaks(t)
	return d
}

// warm makes warmUp do its work only once.
var warm sync.Once

// warmUp makes librdmacm open what it keeps open until the process ends, so
// that it does not count as a leak of a test.
func warmUp(t testing.TB, ip netip.Addr) {
	t.Helper()
	warm.Do(func() {
		ch, err := rdmacm.NewEventChannel()
		require.NoError(t, err)
		id, err := ch.NewID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
		require.NoError(t, id.BindAddr(netip.AddrPortFrom(ip, 0)))
		_, err = id.Device()
		require.NoError(t, err)
		require.NoError(t, id.Close())
		require.NoError(t, ch.Close())
	})
}

// Bounded returns a context that ends with the test, or after Patience.
func Bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Padded returns data, filled up with zeros to size bytes. The peer gets
// private data in this form.
func Padded(data []byte, size int) []byte {
	return append(append([]byte(nil), data...), make([]byte, size-len(data))...)
}

// Largest private data of connections on InfiniBand and RoCE, in bytes.
const (
	MaxRequestData = 56
	MaxReplyData   = 196
	MaxRejectData  = 148
)

// Largest private data of requests for a datagram service and of their answers.
const (
	MaxDatagramRequest = 180
	MaxDatagramReply   = 136
)

// InBackground runs f in a goroutine. The channel gets the error of f.
func InBackground(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// Take receives a value from a channel. The test fails if none comes; what
// names the value in the message.
func Take[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(Patience):
		require.FailNow(t, "does not come", what)
	}
	return v
}

// Canceled returns a context that has ended.
func Canceled(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Find returns the device with that name from rdmacm.Devices, or nil if there
// is none.
func Find(t testing.TB, name string) *ibverbs.Device {
	t.Helper()
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	i := slices.IndexFunc(devices, func(c *ibverbs.Device) bool { return c.Name() == name })
	if i < 0 {
		return nil
	}
	return devices[i]
}

// NewChannel returns an event channel, which is closed at the end of the test.
func NewChannel(t testing.TB) *rdmacm.EventChannel {
	t.Helper()
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	return ch
}

// NewID returns an ID on the channel ch, which is closed at the end of the
// test.
func NewID(t testing.TB, ch *rdmacm.EventChannel) *rdmacm.ID {
	t.Helper()
	id, err := ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, id.Close()) })
	return id
}

// Next returns the next event of the channel, which must have the type want.
func Next(t testing.TB, ch *rdmacm.EventChannel, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ev, err := ch.Next(Bounded(t))
	require.NoError(t, err)
	require.Equal(t, want, ev.Type, "%v, status %d", ev.Type, ev.Status)
	return ev
}

// pool is the pool that was passed to SharePool, or nil.
var pool *rdmacm.Pool

// SharePool makes Pooled return configs that use the pool p.
func SharePool(p *rdmacm.Pool) { pool = p }

// SharesPool reports whether SharePool was called.
func SharesPool() bool { return pool != nil }

// Pooled returns a copy of config whose Queues is the pool given to SharePool.
// If there is no pool, or config sets Queues or PD, it returns config itself.
// config may be nil.
func Pooled(config *rdmacm.Config) *rdmacm.Config {
	var out rdmacm.Config
	if config != nil {
		out = *config
	}
	if pool == nil || out.Queues != nil || out.PD != nil {
		return config
	}
	out.Queues = pool
	return &out
}

// Have skips the test if the device lacks what the configs ask for. A config
// may be nil.
func Have(t testing.TB, configs ...*rdmacm.Config) {
	t.Helper()
	var need []testdevice.Feature
	for _, c := range configs {
		if c == nil {
			continue
		}
		need = append(need, testdevice.Segments(c.Segments), testdevice.Requests(max(c.SendQueue, c.RecvQueue)),
			testdevice.Completions(c.SendQueue+c.RecvQueue))
		if c.MaxInline > 0 {
			need = append(need, testdevice.Inline(c.MaxInline))
		}
		if _, shared := c.Queues.(*rdmacm.Pool); shared {
			need = append(need, testdevice.SRQs)
		}
	}
	if len(need) > 0 {
		testdevice.Require(t).Have(t, need...)
	}
}

// Connect returns the two ends of a connection, which are closed at the end of
// the test.
func Connect(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.Config) (client, server *rdmacm.Conn) {
	t.Helper()
	Have(t, Pooled(clientConfig), Pooled(serverConfig))
	ctx := Bounded(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	accepted := InBackground(func() error {
		request, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		server, err = request.Accept(ctx, Pooled(serverConfig))
		return err
	})
	client, err = rdmacm.Dial(ctx, ln.Addr().String(), Pooled(clientConfig))
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
	return client, server
}

// Soon waits until ok returns true. The test fails if that takes longer than
// Patience; what names the condition in the message.
func Soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), what)
	}
}

// ManyProcessors sets GOMAXPROCS to at least eight until the end of the test.
// So more goroutines run at the same time, even if the machine has few
// processors.
func ManyProcessors(t testing.TB) {
	t.Helper()
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(before, 8))
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// Printed calls f and returns what f prints on standard output.
func Printed(t testing.TB, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	stdout := os.Stdout
	os.Stdout = w
	f()
	os.Stdout = stdout
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}
