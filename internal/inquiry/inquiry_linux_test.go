// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSocket(t *testing.T) {
	const before = "ffff888102030405: 00000002 00000000 00010000 0001 01 12345"
	for line, name := range map[string]string{
		before + " @name":     "@name",
		before + " /run/name": "/run/name",
		before + " ":          "",
		"@name":               "",
		"":                    "",
	} {
		require.Equal(t, name, socket(line), line)
	}
	require.True(t, IsNumber("0123456789abcdef"))
	for _, text := range []string{"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "0123456789abcdeg"} {
		require.False(t, IsNumber(text), text)
	}
}

// A process that serves is asked until its listener is closed.
func TestAsk(t *testing.T) {
	name := fmt.Sprintf("@verbena-inquiry-test/%016x", rand.Uint64())
	ask := func() []Answer {
		all, err := Ask(t.Context(), func(other string) bool { return other == name })
		require.NoError(t, err)
		return all
	}
	require.Empty(t, ask())
	listener, err := net.Listen("unix", name)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(t.Context(), listener, func() []byte { return []byte("answer") })
	}()
	for range 2 {
		require.Equal(t, []Answer{{PID: os.Getpid(), Data: []byte("answer")}}, ask())
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Ask(over, func(string) bool { return true })
	require.ErrorIs(t, err, context.Canceled, "nothing was asked")
	require.NoError(t, listener.Close())
	<-ended
	require.Empty(t, ask())
}

// A process that does not take its answer holds up the end of Serve no longer
// than ctx.
func TestServeEnds(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	asked, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		serve(ctx, listener, time.Hour, func() []byte {
			close(asked)
			return make([]byte, maxAnswer)
		})
	}()
	asker, err := net.Dial("unix", listener.Addr().String())
	require.NoError(t, err)
	defer asker.Close()
	<-asked
	require.NoError(t, listener.Close())
	cancel()
	<-ended
}

// A process that closes its listener while it is asked has no answer.
func TestAskClosing(t *testing.T) {
	name := fmt.Sprintf("@verbena-inquiry-test/%016x", rand.Uint64())
	listener, err := net.Listen("unix", name) // nothing is accepted
	require.NoError(t, err)
	defer listener.Close()
	raw, err := listener.(*net.UnixListener).SyscallConn()
	require.NoError(t, err)
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer syscall.Close(epoll)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, int(fd), &syscall.EpollEvent{Events: syscall.EPOLLIN})
	}))
	require.NoError(t, err)
	all := make(chan []Answer)
	go func() {
		got, err := Ask(t.Context(), func(other string) bool { return other == name })
		assert.NoError(t, err)
		all <- got
	}()
	for err = syscall.EINTR; err == syscall.EINTR; { // until there is a connection to accept
		_, err = syscall.EpollWait(epoll, make([]syscall.EpollEvent, 1), -1)
	}
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	require.Empty(t, <-all)
}

// A process that is stopped is named, with the reason.
func TestAskStopped(t *testing.T) {
	name := fmt.Sprintf("@verbena-inquiry-test/%016x", rand.Uint64())
	listener, err := net.Listen("unix", name) // nothing is accepted
	require.NoError(t, err)
	defer listener.Close()
	var all []Answer
	// A busy machine takes a while to find the process, and the kernel's table
	// may lack a socket while others in it come and go.
	for limit := time.Second; len(all) == 0 && limit < time.Minute; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		all, err = Ask(ctx, func(other string) bool { return other == name })
		cancel()
		require.NoError(t, err)
	}
	require.Len(t, all, 1)
	require.Equal(t, os.Getpid(), all[0].PID)
	require.EqualError(t, all[0].Err, "the process does not answer")
}

// A process of the same user is believed.
func TestSameUser(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	defer listener.Close()
	dialed, err := net.Dial("unix", listener.Addr().String())
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	require.NoError(t, SameUser(dialed.(*net.UnixConn)))
	require.NoError(t, SameUser(accepted.(*net.UnixConn)))
	require.NoError(t, dialed.Close())
	require.Error(t, SameUser(dialed.(*net.UnixConn)), "its socket is closed")
}
