// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestContextEndsWaitForRequest(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := ln.Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, ln.Close())
}

func TestEndedContext(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	stop := serve(t, ln)
	defer stop()
	client, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more time")
	cancel(cause)
	_, err = rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
	require.ErrorIs(t, err, cause)
	_, err = rdmacm.Listen(ctx, ":0", nil)
	require.ErrorIs(t, err, cause)
	_, err = client.Recv(ctx)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, client.Err(), "the connection does not end with a context")
}

// A canceled wait gives up neither its receive nor the turns of other
// goroutines.
func TestCanceledPollerIsReplaced(t *testing.T) {
	manyProcessors(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	mr := alloc(t, server, 64)
	first, err := server.PostRecv(mr.Sub(0, 8))
	require.NoError(t, err)
	second, err := server.PostRecv(mr.Sub(8, 8))
	require.NoError(t, err)
	third, err := server.PostRecv(mr.Sub(16, 8))
	require.NoError(t, err)

	ctx := bounded(t)
	leading, stopLeading := context.WithCancel(ctx)
	polled := make(chan error, 1)
	go func() {
		_, err := first.Wait(leading)
		polled <- err
	}()
	require.Eventually(t, func() bool { return rdmacm.HasPoller(server) }, patience, time.Microsecond)
	followed := make(chan error, 2)
	for _, r := range []*rdmacm.Receive{second, third} {
		each(followed, func() error {
			_, err := r.Wait(ctx)
			return err
		})
	}
	stopLeading()
	require.ErrorIs(t, <-polled, context.Canceled)
	for range 3 {
		require.NoError(t, client.Send(ctx))
	}
	require.NoError(t, <-followed)
	require.NoError(t, <-followed)
	_, err = first.Wait(ctx) // whose message the others have found
	require.NoError(t, err)
}

// The request of a canceled send keeps its place in the queue until it is done.
func TestCanceledSendKeepsItsPlace(t *testing.T) {
	manyProcessors(t)
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 1}, nil)
	ctx := bounded(t)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	// The peer has no receive. The first send waits for a receive, and the
	// others wait for the place of the first.
	require.ErrorIs(t, abandoned(t, client, func(ctx context.Context) error { return client.Send(ctx) }), context.Canceled)
	for range 2 {
		require.ErrorIs(t, client.Send(short()), context.DeadlineExceeded)
	}
	received, err := server.PostRecv()
	require.NoError(t, err)
	_, err = received.Wait(ctx)
	require.NoError(t, err)
	another, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx))
	_, err = another.Wait(ctx)
	require.NoError(t, err)
}

// balance holds the numbers of a process's and the kernel's objects.
type balance struct {
	t       *testing.T
	device  string
	objects int // of ours
	kernel  map[string]int
}

func newBalance(t *testing.T, d testdevice.Device) *balance {
	return &balance{t, d.Name, len(ibverbs.OpenObjects()), kernelObjects(t, d.Name)}
}

// require compares the numbers with the present ones. The process's objects
// must be gone at once, unless other goroutines still close theirs. The
// kernel's must be gone soon.
func (b *balance) require(stage string, others bool) {
	b.t.Helper()
	if !others {
		require.Len(b.t, ibverbs.OpenObjects(), b.objects, stage)
	}
	now := kernelObjects(b.t, b.device)
	for end := time.Now().Add(patience); len(ibverbs.OpenObjects()) != b.objects || !maps.Equal(b.kernel, now); {
		require.True(b.t, time.Now().Before(end), "%s: %d objects of ours and %v of the kernel's, now %v and %v\n%s",
			stage, b.objects, b.kernel, ibverbs.OpenObjects(), now, command(b.t, "rdma resource show cm_id"))
		time.Sleep(5 * time.Millisecond)
		now = kernelObjects(b.t, b.device)
	}
}

// cancelAtEachStage calls try with a context that ends at its first check, then
// with one that ends at its second check, and so on, until a context does not
// end. The stages are all functions that check the context in a try, with the
// number of their checks.
//
// When the context ends, what the try waits for may have come already. Either
// may win, and the stage is tried again.
func cancelAtEachStage(t *testing.T, stages map[string]int, try func(ctx context.Context) error) {
	t.Helper()
	canceled := map[string]int{}
	lost := 0
	for n := 1; ; {
		ctx := newCountdown(t, n)
		err := try(ctx)
		stage, ended := ctx.last()
		if !ended {
			require.NoError(t, err)
			break
		}
		if err == nil {
			lost++
			require.Less(t, lost, 64, "%s does not heed its context", stage)
			continue
		}
		require.ErrorIs(t, err, context.Canceled, stage)
		canceled[stage]++
		n++
	}
	require.Equal(t, stages, canceled)
}

// setupStage is the name of the stage in which Config.Setup runs. Setup is
// called between the steps that wait.
const setupStage = "set up"

// lookAtSetup makes Setup check the context, too.
func lookAtSetup(ctx context.Context, config *rdmacm.Config) *rdmacm.Config {
	config.Setup = func(c *rdmacm.Conn) error {
		if _, err := c.Alloc(4096, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		if ctx, ok := ctx.(*countdown); ok {
			ctx.tick(setupStage)
		}
		return nil // the next wait notices
	}
	return config
}

func TestCancelDialAtEachStage(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	pool := newPool(t, &rdmacm.Pool{})
	for _, tt := range []struct {
		name   string
		config rdmacm.Config
	}{
		{modes[0].name, rdmacm.Config{Queues: manual(modes[0].manualClient)}},
		{modes[1].name, rdmacm.Config{Queues: manual(modes[1].manualClient)}},
		{"a pool", rdmacm.Config{Queues: pool}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ln := listenOn(t, d.IPv4)
			before := newBalance(t, d)
			cancelAtEachStage(t, map[string]int{
				"ended":          1,
				"(*Dialer).each": 1,
				setupStage:       1,
				"(*answers).ask": 3, // the address, the route, and the peer's answer
			}, func(ctx context.Context) error {
				stop := serve(t, ln)
				config := tt.config
				conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(lookAtSetup(ctx, &config)))
				if err == nil {
					require.NoError(t, conn.Close())
				}
				stop()
				stop = refuseAll(t, ln) // a request that comes only now
				before.require("dial", true)
				stop()
				return err
			})
		})
	}
}

// serve accepts connections, and closes each when the peer does.
func serve(t *testing.T, ln *rdmacm.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serveOne := func(req *rdmacm.Request) {
		// The dialer may have given up. CM may notice that only after a minute.
		conn, err := req.Accept(ctx, inPool(nil))
		if err != nil {
			return
		}
		select {
		case <-conn.Done():
		case <-ctx.Done():
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	serving.Go(func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			serving.Go(func() { serveOne(req) })
		}
	})
	return func() { cancel(); serving.Wait() }
}

// refuseAll rejects requests.
func refuseAll(t *testing.T, ln *rdmacm.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var refusing sync.WaitGroup
	refusing.Go(func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			_ = req.Reject(nil) // the dialer may have given up
		}
	})
	return func() { cancel(); refusing.Wait() }
}

func TestCancelAcceptAtEachStage(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	pool := newPool(t, &rdmacm.Pool{})
	for _, tt := range []struct {
		name   string
		config rdmacm.Config
	}{
		{modes[0].name, rdmacm.Config{Queues: manual(modes[0].manualServer)}},
		{modes[2].name, rdmacm.Config{Queues: manual(modes[2].manualServer)}},
		{"a pool", rdmacm.Config{Queues: pool}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ln := listenOn(t, d.IPv4)
			before := newBalance(t, d)
			cancelAtEachStage(t, map[string]int{"ended": 1, "(*Conn).accept": 1, setupStage: 1, "(*answers).ask": 1}, func(ctx context.Context) error {
				dialed := make(chan error, 1)
				go func() { dialed <- dialUntilDone(bounded(t), ln) }()
				req, err := ln.Accept(bounded(t))
				require.NoError(t, err)
				config := tt.config
				conn, err := req.Accept(ctx, inPool(lookAtSetup(ctx, &config)))
				if err == nil {
					require.NoError(t, conn.Close())
				}
				stop := refuseAll(t, ln) // a dial that begins again
				requireGone(t, <-dialed)
				stop()
				before.require("accept", false)
				return err
			})
		})
	}
}

// dialUntilDone dials, and returns why the dial failed or why the connection
// ended.
func dialUntilDone(ctx context.Context, ln *rdmacm.Listener) error {
	conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
	if err != nil {
		return err
	}
	<-conn.Done()
	return errors.Join(conn.Err(), conn.Close())
}

// requireGone checks the error of a dialer whose peer gives up before, while or
// after librdmacm answers the peer's acceptance.
func requireGone(t *testing.T, err error) {
	t.Helper()
	require.Truef(t, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

func TestCancelListenAtEachStage(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	before := newBalance(t, d)
	cancelAtEachStage(t, map[string]int{"ended": 1, "(*ListenConfig).listen": 1}, func(ctx context.Context) error {
		ln, err := rdmacm.Listen(ctx, d.IPv4.String()+":0", nil)
		if err == nil {
			require.NoError(t, ln.Close())
		}
		before.require("listen", false)
		return err
	})
}

// A canceled wait for requests consumes no request. The next wait gets a
// request that came meanwhile.
func TestCancelWaitForRequest(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	ln := listenOn(t, d.IPv4)
	before := newBalance(t, d)
	dialed := make(chan error, 1)
	go func() { dialed <- dialUntilDone(bounded(t), ln) }()
	require.Eventually(t, func() bool { return rdmacm.Waiting(ln) == 1 }, patience, time.Millisecond)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // with both there, either may be taken
		req, err := ln.Accept(ended)
		if err == nil {
			require.NoError(t, req.Reject(nil))
			requireGone(t, <-dialed)
			before.require("request taken", false)
			return
		}
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, rdmacm.Waiting(ln))
	}
	require.Fail(t, "the request was never taken")
}
