// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// together runs f in n goroutines that begin together, and returns their
// results.
func together(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	all.Wait()
	return errs
}

// More goroutines send than there are places. Each send ends.
func TestSendersOutnumberTheQueue(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		senders, queue, rounds int
		many                   bool // processors
	}{
		{2, 1, 2000, false},
		{2, 1, 4000, true},
		{8, 1, 300, false},
		{8, 1, 600, true},
		{64, 16, 60, true},
	} {
		t.Run(fmt.Sprintf("%d on %d, many %t", tt.senders, tt.queue, tt.many), func(t *testing.T) {
			if tt.many {
				manyProcessors(t)
			}
			client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: tt.queue}, nil)
			here, there := alloc(t, client, 8), alloc(t, server, 8)
			ctx := bounded(t)
			for _, err := range together(tt.senders, func(int) error {
				for range tt.rounds {
					if err := client.Write(ctx, there.Remote(), here.All()); err != nil {
						return err
					}
				}
				return nil
			}) {
				require.NoError(t, err)
			}
		})
	}
}

// refused posts a request that C refuses: an atomic on an address that is no
// multiple of 8.
func refused(ctx context.Context, conn *rdmacm.Conn, result ibverbs.Segment) error {
	at := ibverbs.RemoteBuffer{Addr: 4, RKey: 1, Len: 8}
	return conn.FetchAdd(ctx, at, 1, result)
}

// Refused requests stand between good ones. No goroutine waits for the place of
// a refused request.
func TestRefusedRequestsBetweenGoodOnes(t *testing.T) {
	manyProcessors(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 1}, nil)
	here, there := alloc(t, client, 16), alloc(t, server, 8)
	ctx := bounded(t)
	for _, err := range together(16, func(i int) error {
		for range 100 {
			if i%2 == 0 {
				if err := client.Write(ctx, there.Remote(), here.Sub(0, 8)); err != nil {
					return err
				}
			} else if err := refused(ctx, client, here.Sub(8, 8)); !errors.Is(err, syscall.EINVAL) {
				return fmt.Errorf("not refused: %w", err)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
}

// The peer closes while more goroutines send than there are places. Each of
// them learns of it.
func TestPeerGoesUnderManySenders(t *testing.T) {
	manyProcessors(t)
	const senders = 64
	d := needDevice(t)
	for round := range 5 {
		client, server := connect(t, d.IPv4, nil, nil)
		here, there := alloc(t, client, 8), alloc(t, server, 8)
		ctx := bounded(t)
		var sending sync.WaitGroup
		sending.Add(senders)
		closed := make(chan error, 1)
		go func() {
			sending.Wait()
			closed <- server.Close()
		}()
		for _, err := range together(senders, func(int) error {
			for first := true; ; first = false {
				err := client.Write(ctx, there.Remote(), here.All())
				if first {
					sending.Done()
				}
				if err != nil {
					return err
				}
			}
		}) {
			require.NotErrorIs(t, err, context.DeadlineExceeded, "round %d", round)
			require.Error(t, err)
		}
		require.NoError(t, <-closed)
	}
}
