// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
)

// A kernel may hold a Close for a minute, such as that of a queue pair whose
// packets a cut link still has. All else goes on: other connections on the same
// device come, hear of their peers' ends, and go.
func TestCloseIsHeld(t *testing.T) {
	cm := open(t)
	verbs := fakelib.OpenProvider(t)
	for _, tt := range []struct {
		library  *fakelib.Provider
		function string
	}{
		{verbs, "ibv_destroy_qp"},
		{verbs, "ibv_destroy_cq"},
		{verbs, "ibv_destroy_comp_channel"},
		{verbs, "ibv_dereg_mr"},
		{verbs, "ibv_dealloc_pd"},
		{cm, "rdma_disconnect"},
		{cm, "rdma_destroy_id"},
	} {
		t.Run(tt.function, func(t *testing.T) {
			conn, err := rdmacm.Dial(bounded(t), address, &rdmacm.Config{Linger: -1}) // so that Close destroys the id itself
			require.NoError(t, err)
			_, err = conn.Alloc(1, ibverbs.AccessLocalWrite)
			require.NoError(t, err)
			reached, release := tt.library.Hold(tt.function)
			defer release()
			closed, others := make(chan error, 1), make(chan error, 1)
			go func() { closed <- conn.Close() }()
			reached()

			go func() { others <- useConnections(bounded(t), cm) }()
			select {
			case err := <-others:
				require.NoError(t, err)
			case <-bounded(t).Done():
				require.FailNow(t, "one Close holds all others")
			}
			require.Empty(t, closed)
			release()
			require.NoError(t, <-closed)
		})
	}
}

// A region that the program is closing still belongs to its protection domain:
// the connection must not forget it, and Close must wait for it.
func TestRegionIsBeingClosed(t *testing.T) {
	open(t)
	verbs := fakelib.OpenProvider(t)
	conn, err := rdmacm.Dial(bounded(t), address, nil)
	require.NoError(t, err)
	mr, err := conn.Alloc(1, 0)
	require.NoError(t, err)
	reached, release := verbs.Hold("ibv_dereg_mr")
	defer release()
	closing := make(chan error, 3)
	go func() { closing <- mr.Close() }()
	reached()
	verbs.Forget()
	go func() {
		_, err := conn.Alloc(1, 0)
		closing <- err
	}()
	for !slices.Contains(verbs.Names(), "ibv_reg_mr") {
		runtime.Gosched()
	}
	go func() { closing <- conn.Shutdown(bounded(t)) }()
	select {
	case err := <-closing:
		require.NoError(t, err, "before the region is closed")
		closing <- err // only Alloc can have returned
	case <-time.After(100 * time.Millisecond): // all wait, as far as one can see
	}
	release()
	for range cap(closing) {
		require.NoError(t, <-closing)
	}
}

// useConnections does what a program does with connections.
func useConnections(ctx context.Context, cm *fakelib.Provider) error {
	conn, err := rdmacm.Dial(ctx, address, nil)
	if err != nil {
		return err
	}
	cm.Forget()
	if err := conn.ID().Disconnect(); err != nil { // the event is as if it were the peer that did
		return err
	}
	<-conn.Done()
	for disconnects(cm, conn) < 2 { // the second one because of the event
		if ctx.Err() != nil {
			return fmt.Errorf("the queue pair is not told: %w", ctx.Err())
		}
		runtime.Gosched()
	}
	for _, f := range []func() error{
		conn.Close, func() error { return accept(ctx) }, func() error { return reject(ctx) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	devices, err := rdmacm.Devices()
	if err != nil {
		return err
	}
	pd, err := devices[0].AllocPD()
	if err != nil {
		return err
	}
	return pd.Close()
}

// disconnects returns how often the connection was disconnected.
func disconnects(cm *fakelib.Provider, conn *rdmacm.Conn) (n int) {
	for _, c := range cm.Calls() {
		if c.Name() == "rdma_disconnect" && c.Arg(0) == int64(uintptr(unsafe.Pointer(conn.ID().Raw()))) {
			n++
		}
	}
	return n
}
