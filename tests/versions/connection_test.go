// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"context"
	"net/netip"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// patience is how long anything may take that must happen.
const patience = time.Minute

// testLibraries proves that this process has loaded the libraries of the
// version, and its provider.
func testLibraries(t *testing.T, version string) {
	d := testdevice.Require(t)
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	require.NoError(t, ch.Close())
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	var loaded []string
	for _, library := range []string{`libibverbs\.so\.1\.\d+\.`, `librdmacm\.so\.1\.\d+\.`} {
		file := regexp.MustCompile(`/\S+/` + library + regexp.QuoteMeta(version)).Find(maps)
		require.NotEmpty(t, file, "%s of %s is not loaded", library, version)
		loaded = append(loaded, string(file))
	}
	provider := regexp.MustCompile(`/\S+/librxe-rdmav\d+\.so`).Find(maps)
	require.NotEmpty(t, provider)
	libc := regexp.MustCompile(`/\S+/libc\.so\.6`).Find(maps)
	t.Logf("%s with %v, %s, %s", d.Name, loaded, provider, libc)
}

// testConnection makes a reliable connection and sends a message over it.
func testConnection(t *testing.T) {
	d := testdevice.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()

	received := make(chan string, 1)
	failed := make(chan error, 1)
	sent := make(chan struct{})
	go func() {
		message, err := receive(ctx, ln, sent)
		received <- message
		failed <- err
	}()
	conn, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	memory, err := conn.Alloc(4096, 0)
	require.NoError(t, err)
	n := copy(memory.Bytes(), "the same program, another library")
	err = conn.Send(ctx, memory.Sub(0, n))
	close(sent)
	require.NoError(t, err)
	require.Equal(t, "the same program, another library", <-received)
	require.NoError(t, <-failed)
	require.NoError(t, conn.Close())
	t.Logf("%s: sent and received %d bytes", d.Name, n)
}

// receive takes one connection and returns the message that comes over it. It
// closes the connection only once the sender knows that the message arrived,
// since the message's acknowledgement would be lost otherwise.
func receive(ctx context.Context, ln *rdmacm.Listener, sent <-chan struct{}) (string, error) {
	req, err := ln.Accept(ctx)
	if err != nil {
		return "", err
	}
	var memory *ibverbs.MR
	var message *rdmacm.Receive
	conn, err := req.Accept(ctx, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		if memory, err = c.Alloc(4096, ibverbs.AccessLocalWrite); err == nil {
			message, err = c.PostRecv(memory.All())
		}
		return err
	}})
	if err != nil {
		return "", err
	}
	n, err := message.Wait(ctx)
	text := string(memory.Bytes()[:n])
	<-sent
	if closing := conn.Close(); err == nil {
		err = closing
	}
	return text, err
}
