// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// The dispatcher starts with its first user and stops with its last. Here a new
// user often comes as the last one goes, and each user gets its events.
func TestDispatcherComesAndGoes(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	to := netip.AddrPortFrom(d.IPv4, 1)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 30 {
				resolved := make(chan *rdmacm.Event, 1)
				id, err := handled.New(rdmacm.PortSpaceTCP, func(_ *handled.ID, ev *rdmacm.Event) error {
					resolved <- ev
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
				if err := id.ID().ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
					t.Error(err)
				} else if ev := <-resolved; ev.ID != id.ID() || ev.Type != rdmacm.EventAddrResolved {
					t.Errorf("%v of %p, not of %p", ev.Type, ev.ID, id.ID())
				}
				if err := id.Shutdown(ctx); err != nil {
					t.Error(err)
				}
			}
		})
		group.Go(func() {
			for range 30 {
				ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if err := ln.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, ctx.Err())
}

// Many connections are made and given up at once. Each end gets only its own
// events.
func TestEventsReachTheirIDs(t *testing.T) {
	b := cmtest.NewBench(t, needDevice(t))
	errs := make(chan error, 1024)
	check := func(id *handled.ID, ev *rdmacm.Event) {
		if ev.ID != id.ID() {
			errs <- fmt.Errorf("%v of %p came to %p", ev.Type, ev.ID, id.ID())
		}
	}
	accept := b.Accepting(func(_ *handled.ID, ev *rdmacm.Event) error { return ev.Err() })
	ln := b.Listen(64, func(id *handled.ID, ev *rdmacm.Event) error {
		check(id, ev)
		return accept(id, ev)
	})
	const dialers, rounds = 8, 6
	var group sync.WaitGroup
	for n := range dialers {
		group.Go(func() {
			for round := range rounds {
				dialing := b.Dialing(func(_ *handled.ID, ev *rdmacm.Event) error { return ev.Err() })
				last := rdmacm.EventAddrResolved // that it waits for
				if (n+round)%3 != 0 {
					last = rdmacm.EventEstablished
				}
				seen := make(chan rdmacm.EventType, 8)
				id, err := handled.New(rdmacm.PortSpaceTCP, func(id *handled.ID, ev *rdmacm.Event) error {
					check(id, ev)
					err := dialing(id, ev)
					seen <- ev.Type
					return err
				})
				if err != nil {
					errs <- err
					return
				}
				if err := id.ID().ResolveAddr(netip.AddrPort{}, ln.ID().LocalAddr(), time.Second); err != nil {
					errs <- err
				}
				for got := rdmacm.EventUser; got != last; {
					select {
					case got = <-seen:
					case <-time.After(patience):
						errs <- errors.New("no " + last.String())
						got = last
					}
				}
				if err := id.Shutdown(context.Background()); err != nil {
					errs <- err
				}
			}
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// Of many goroutines, each with a connection, none falls far behind, though
// their completions come at once. A goroutine may be behind for some time if
// other processes take the processor of the thread that is to run it: so each
// try takes twice as long as the one before, and one is enough.
func TestGoroutinesGetOnAlike(t *testing.T) {
	const conns, minRounds, maxRounds = 100, 200, 12_800
	d := needDevice(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience)
	defer cancel()
	clients := make([]*rdmacm.Conn, conns)
	reads := make([]func() error, conns)
	for i := range clients {
		client, server := connect(t, d.IPv4, nil, nil)
		here, there := alloc(t, client, 8), alloc(t, server, 8)
		reads[i] = func() error { return client.Read(ctx, here.All(), there.Remote()) }
	}
	for rounds := int64(minRounds); rounds <= maxRounds; rounds *= 2 {
		var counts [conns]atomic.Int64
		var total atomic.Int64
		for _, err := range together(conns, func(i int) error {
			for total.Add(1) <= conns*rounds {
				if err := reads[i](); err != nil {
					return err
				}
				counts[i].Add(1)
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		all := make([]int64, conns)
		for i := range counts {
			all[i] = counts[i].Load()
		}
		slices.Sort(all)
		least, middle := all[0], all[conns/2]
		t.Logf("%d to %d reads each, %d in the middle", least, all[conns-1], middle)
		if least >= middle/10 || os.Getenv("VERBENA_HOSTILE") != "" { // then the device is unfair on purpose
			return
		}
	}
	require.Fail(t, "a goroutine fell far behind in each try")
}
