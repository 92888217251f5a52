// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestMain(m *testing.M) { os.Exit(fakelib.CMMain(m)) }

const address = "192.0.2.1:7471"

// open returns librdmacm. At the end of the test neither C library nor Go may
// have more objects than now.
func open(t *testing.T) *fakelib.Provider {
	t.Helper()
	_, err := rdmacm.Devices() // which stay open
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	fakelib.OpenProvider(t)
	return fakelib.OpenCM(t)
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// logCallsOfFailure makes a test that fails log the calls of C from here on.
func logCallsOfFailure(t *testing.T, c *fakelib.Provider) {
	t.Helper()
	c.Forget()
	t.Cleanup(func() {
		if t.Failed() {
			for _, call := range c.Calls() {
				t.Logf("%s%#x = %d", call.Name(), call.Args(), call.Result())
			}
		}
	})
}

// way is how a function that failed with an errno says so.
type way struct {
	name          string
	result, errno func(syscall.Errno) int64
}

// The manual says -1 and errno. Older libraries return -errno, and leave in
// errno whatever was there; so does rdma_cm(7) of other systems have it.
var ways = []way{
	{"-1 and errno", number(-1), positive},
	{"-errno and nothing", negative, number(0)},
	{"-errno and the same errno", negative, positive},
	{"-errno and another errno", negative, number(int64(syscall.ENOSPC))},
	{"-1 and -errno", number(-1), negative},
}

func number(n int64) func(syscall.Errno) int64 { return func(syscall.Errno) int64 { return n } }
func positive(e syscall.Errno) int64           { return int64(e) }
func negative(e syscall.Errno) int64           { return -int64(e) }

// fail plans that the next call of the function fails, once.
func (w way) fail(c *fakelib.Provider, function string, errno syscall.Errno) {
	w.failOf(c, function, 0, errno)
}

// failOf is fail for the next call of the function on the object at an address.
func (w way) failOf(c *fakelib.Provider, function string, object int64, errno syscall.Errno) {
	c.NextOf(function, object, fakelib.Returns(w.result(errno), syscall.Errno(w.errno(errno))))
}

// requireErrno looks at an error that a call of C is the cause of.
func requireErrno(t *testing.T, err error, function string, errno syscall.Errno) {
	t.Helper()
	require.ErrorIs(t, err, errno)
	var e *ibverbs.Error
	require.ErrorAs(t, err, &e)
	requirePublic(t, err)
	require.Equal(t, function, e.Op)
	require.Equal(t, errno, e.Errno)
	require.NotErrorIs(t, err, syscall.ENOSPC, "what errno happened to be")
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
