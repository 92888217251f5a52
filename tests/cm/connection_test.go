// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
)

func dial(ctx context.Context) error {
	dialer := rdmacm.Dialer{Config: rdmacm.Config{AckTimeout: time.Second}, TOS: 8}
	conn, err := dialer.Dial(ctx, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// dialAndHearTheEnd is dial, and waits for the last event of the connection, so
// that no failure of reading events that is set afterwards meets that one.
func dialAndHearTheEnd(ctx context.Context) error {
	conn, err := rdmacm.Dial(ctx, address, nil)
	if err != nil {
		return err
	}
	return conn.Shutdown(ctx)
}

func dialManually(ctx context.Context) error {
	conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{Queues: new(rdmacm.VerbsQP)})
	if err != nil {
		return err
	}
	return conn.Close()
}

func accept(ctx context.Context) error {
	config := &rdmacm.ListenConfig{ReuseAddr: true}
	ln, err := rdmacm.Listen(ctx, address, config)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	conn, err := req.Accept(ctx, nil)
	if err != nil {
		return err
	}
	return conn.Close()
}

func reject(ctx context.Context) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	return req.Reject([]byte("no"))
}

// Each function that a connection needs fails once, in each way: the error has
// its errno, and everything that was made is given back.
func TestConnectionsOverLibraries(t *testing.T) {
	c := open(t)
	for _, tt := range []struct {
		name, prefix string
		connect      func(context.Context) error
		functions    []string
	}{
		{"dial", "dial " + address + ": ", dial, []string{
			"rdma_create_id", "rdma_resolve_addr", "rdma_set_option", "rdma_resolve_route", "rdma_create_qp_ex", "rdma_connect",
			"rdma_get_remote_ece", "rdma_init_qp_attr", "rdma_establish",
		}},
		{"dial manually", "dial " + address + ": ", dialManually, []string{
			"rdma_create_id", "rdma_resolve_addr", "rdma_resolve_route", "rdma_init_qp_attr", "rdma_connect", "rdma_establish",
		}},
		{"accept", "", accept, []string{
			"rdma_create_id", "rdma_set_option", "rdma_bind_addr", "rdma_listen", "rdma_create_qp_ex", "rdma_init_qp_attr", "rdma_accept",
		}},
		{"reject", "", reject, []string{"rdma_create_id", "rdma_bind_addr", "rdma_listen", "rdma_reject"}},
	} {
		require.NoError(t, tt.connect(bounded(t)), tt.name)
		for _, function := range tt.functions {
			for _, w := range ways {
				t.Run(strings.Join([]string{tt.name, function, w.name}, "/"), func(t *testing.T) {
					w.fail(c, function, syscall.ENOBUFS)
					err := tt.connect(bounded(t))
					requireErrno(t, err, function, syscall.ENOBUFS)
					require.True(t, strings.HasPrefix(err.Error(), tt.prefix), err)
				})
			}
		}
		require.NoError(t, tt.connect(bounded(t)), "%s, after all that", tt.name)
	}
}

// The functions that return pointers say NULL and errno.
func TestPointersOverLibraries(t *testing.T) {
	c := open(t)
	c.Next("rdma_create_event_channel", fakelib.Returns(0, syscall.EMFILE))
	requireErrno(t, dial(bounded(t)), "rdma_create_event_channel", syscall.EMFILE)
	c.Next("rdma_get_devices", fakelib.Returns(0, syscall.ENOMEM))
	_, err := rdmacm.Devices()
	requireErrno(t, err, "rdma_get_devices", syscall.ENOMEM)
}

// A wait without a context is refused, and a request that it would have been
// for is over.
func TestWithoutContext(t *testing.T) {
	open(t)
	var nobody context.Context
	conn, err := rdmacm.Dial(bounded(t), address, nil)
	require.NoError(t, err)
	require.ErrorContains(t, conn.Wait(nobody), "ctx is nil")
	require.NoError(t, conn.Close())
	ln, err := rdmacm.Listen(bounded(t), address, nil)
	require.NoError(t, err)
	_, err = ln.Accept(nobody)
	require.ErrorContains(t, err, "ctx is nil")
	req, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	_, err = req.Accept(nobody, nil)
	require.ErrorContains(t, err, "accept: ")
	require.ErrorContains(t, err, "ctx is nil")
	require.ErrorIs(t, req.Reject(nil), os.ErrClosed)
	require.NoError(t, ln.Close())
}

// untilReadingFails sets a failure and connects, until that fails. The reader
// of events may still look for one after the last of an earlier connection: the
// failure that it meets there ends nothing.
func untilReadingFails(t *testing.T, connect func(context.Context) error, fail func()) (err error) {
	t.Helper()
	for ctx := bounded(t); err == nil; err = connect(ctx) {
		fail()
	}
	return err
}

// That there is no event is no failure, however it is said; that none can be
// read any more is one, for all waiting calls.
func TestReadingOverLibraries(t *testing.T) {
	c := open(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			logCallsOfFailure(t, c)
			w.fail(c, "rdma_get_cm_event", syscall.EINTR)
			require.NoError(t, dialAndHearTheEnd(bounded(t)))

			err := untilReadingFails(t, dial, func() { w.fail(c, "rdma_get_cm_event", syscall.EIO) })
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorContains(t, err, "dial "+address+": connection failed: rdma_get_cm_event (event channel ")
			require.ErrorContains(t, err, "): input/output error")
			require.NoError(t, dialAndHearTheEnd(bounded(t)), "with a new channel")

			err = untilReadingFails(t, accept, func() { w.fail(c, "rdma_get_cm_event", syscall.EIO) })
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorContains(t, err, ": connection failed: rdma_get_cm_event (event channel ")

			ch, err := rdmacm.NewEventChannel()
			require.NoError(t, err)
			// A dispatcher may still read its own channel.
			channel := c.Last("rdma_create_event_channel").Result()
			w.failOf(c, "rdma_get_cm_event", channel, syscall.EINTR)
			w.failOf(c, "rdma_get_cm_event", channel, syscall.EAGAIN)
			_, ok, err := ch.Poll()
			require.NoError(t, err)
			require.False(t, ok)
			w.failOf(c, "rdma_get_cm_event", channel, syscall.ENODEV)
			_, err = ch.Next(bounded(t))
			requireErrno(t, err, "rdma_get_cm_event", syscall.ENODEV)
			require.NoError(t, ch.Close())
		})
	}
}

// An id that cannot be destroyed is still there, and can be closed again.
func TestCloseOverLibraries(t *testing.T) {
	c := open(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			conn, err := rdmacm.Dial(bounded(t), address, nil)
			require.NoError(t, err)
			// The ids of earlier connections may still be closed.
			id := int64(uintptr(unsafe.Pointer(conn.ID().Raw())))
			w.failOf(c, "rdma_disconnect", id, syscall.EINVAL) // nothing to disconnect any more
			w.failOf(c, "rdma_destroy_id", id, syscall.EBUSY)
			requireErrno(t, conn.Close(), "rdma_destroy_id", syscall.EBUSY)
			require.NoError(t, conn.Close())
		})
	}
}

// An error of reading events that may pass ends nothing: the event is read when
// it has passed.
func TestReadingAgainOverLibraries(t *testing.T) {
	c := open(t)
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE} {
		for _, w := range ways {
			t.Run(errno.Error()+"/"+w.name, func(t *testing.T) {
				conn, err := rdmacm.Dial(bounded(t), address, nil)
				require.NoError(t, err)
				for range 3 {
					w.fail(c, "rdma_get_cm_event", errno)
				}
				require.NoError(t, accept(bounded(t)))
				require.NoError(t, dial(bounded(t)))
				require.NoError(t, conn.Err())
				require.NoError(t, conn.Close())
			})
		}
	}
}

// A step that fails as invalid because the peer has given up says so, and one
// whose arguments are invalid does not. A dial begins again.
func TestGoneOverLibraries(t *testing.T) {
	c := open(t)
	for name, tt := range map[string]struct {
		connect  func(context.Context) error
		function string
		states   int // of the queue pair, which the function comes after
		again    bool
	}{
		"dial, queue pair":   {dial, "rdma_create_qp_ex", 0, true},
		"dial":               {dial, "rdma_connect", 0, true},
		"accept, queue pair": {accept, "rdma_create_qp_ex", 0, false},
		"accept":             {accept, "rdma_accept", 3, false},
		"manual":             {dialManually, "rdma_establish", 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			ways[0].fail(c, tt.function, syscall.EINVAL)
			requireErrno(t, tt.connect(bounded(t)), tt.function, syscall.EINVAL)
			ways[0].fail(c, tt.function, syscall.EINVAL)
			for range tt.states {
				c.Next("rdma_init_qp_attr", fakelib.Returns(0, 0))
			}
			ways[0].fail(c, "rdma_init_qp_attr", syscall.EINVAL)
			err := tt.connect(bounded(t))
			if tt.again {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NotErrorIs(t, err, syscall.EINVAL)
		})
	}
}

// The id of a connection whose peer has not answered its end stays until it
// does, or until no goroutine can any more.
func TestLingerOverLibraries(t *testing.T) {
	c := open(t)
	for name, tt := range map[string]struct {
		event  rdmacm.EventType
		status int
		is     error
	}{
		"answered":        {rdmacm.EventDisconnected, 0, nil},
		"given up":        {rdmacm.EventDisconnected, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		"device removed":  {rdmacm.EventDeviceRemoval, 0, syscall.ENODEV},
		"no more events":  {rdmacm.EventConnectError, -int(syscall.EIO), syscall.EIO},
		"rejected":        {rdmacm.EventRejected, 28, nil}, // by a peer that was not up yet
		"over":            {rdmacm.EventTimewaitExit, 0, nil},
		"not for the end": {rdmacm.EventAddrChange, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			var config rdmacm.Config
			if tt.is == context.DeadlineExceeded {
				config.Linger = time.Second // so that the id does not stay for long
			}
			conn, err := rdmacm.Dial(bounded(t), address, &config)
			require.NoError(t, err)
			become(c, tt.event, tt.status) // what rdma_disconnect brings
			ctx := bounded(t)
			if tt.is == context.DeadlineExceeded {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			require.ErrorIs(t, conn.Shutdown(ctx), tt.is)
		})
	}
}
