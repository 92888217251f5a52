// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/racing"
)

// allocatesNothing tests that what succeeds allocates nothing.
func allocatesNothing(t *testing.T, all map[string]func() error) {
	t.Helper()
	racing.NeedsDirectCalls(t)
	for name, do := range all {
		require.NoError(t, do(), name)
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = do() }), name)
	}
}

func TestDataPathAllocatesNothing(t *testing.T) {
	f := newFakeDevice(t)
	f.Endless()
	f.cq.channel = &CompChannel{raw: &libibverbs.CompChannel{Fd: -1}} // which is never asked
	f.fields.channel = f.cq.channel
	mr := fakeMR(t, 4096, 1)
	b := filled(t, mr, 32)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(1, mr.All()))
	wcs, ex := make([]WC, 32), make([]WC, 32)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	second := func(_ int, err error) error { return err }
	oneErr := func(_ WC, err error) error { return err }
	third := func(_, _ int, err error) error { return err }
	allocatesNothing(t, map[string]func() error{
		"post":                   func() error { return second(f.qp.PostSend(b)) },
		"post extended":          func() error { return second(f.ex.PostSend(b)) },
		"post receives":          func() error { return second(f.qp.PostRecv(recv)) },
		"post and spin":          func() error { return third(f.qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin)) },
		"post extended and spin": func() error { return third(f.ex.PostSendAndSpin(b, f.cq, wcs, MaxSpin)) },
		"exchange":               func() error { return second(f.qp.Exchange(recv, b, f.cq, wcs, 32, MaxSpin)) },
		"exchange and sleep": func() error {
			return second(f.qp.ExchangeAndSleep(recv, b, f.cq, wcs, 32, MaxSpin))
		},
		"poll":           func() error { return second(f.cq.Poll(wcs)) },
		"spin":           func() error { return second(f.cq.Spin(wcs, MaxSpin)) },
		"wait for one":   func() error { return oneErr(f.cq.WaitOne(ctx)) },
		"wait":           func() error { return second(f.cq.Wait(ctx, wcs)) },
		"sleep":          func() error { return second(f.cq.Sleep(wcs, MaxSpin)) },
		"poll extended":  func() error { return second(f.fields.Poll(ex)) },
		"spin extended":  func() error { return second(f.fields.Spin(ex, MaxSpin)) },
		"wait extended":  func() error { return second(f.fields.Wait(ctx, ex)) },
		"sleep extended": func() error { return second(f.fields.Sleep(ex, MaxSpin)) },
		"look at completions": func() error {
			for i := range wcs {
				_, _ = wcs[i].Imm()
				if err := errors.Join(wcs[i].Err(), ex[i].Err()); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

func TestPollingNothingAllocatesNothing(t *testing.T) {
	f := newFakeDevice(t)
	wcs, ex := make([]WC, 32), make([]WC, 32)
	second := func(_ int, err error) error { return err }
	allocatesNothing(t, map[string]func() error{
		"poll":          func() error { return second(f.cq.Poll(wcs)) },
		"spin":          func() error { return second(f.cq.Spin(wcs, 1)) },
		"poll extended": func() error { return second(f.fields.Poll(ex)) },
		"spin extended": func() error { return second(f.fields.Spin(ex, 1)) },
	})
}

func TestFillingAndPostingAllocatesNothing(t *testing.T) {
	f := newFakeDevice(t)
	f.Endless()
	mrs := []*MR{fakeMR(t, 4096, 1), fakeMR(t, 4096, 2)}
	to := Destination{AH: fakeAH()}
	b, err := NewSendBatch(16, 2)
	require.NoError(t, err)
	round := 0
	allocatesNothing(t, map[string]func() error{
		// What C looks at is another region each time.
		"fill and post": func() error {
			round++
			mr := mrs[round%2]
			remote := mr.Remote()
			remote.Addr &^= 7
			b.Reset()
			err := errors.Join(b.SendInv(1, 2, SendInline, mr.Sub(0, 8)), b.SendTo(1, to, 0, mr.Sub(0, 8)),
				b.SendImmTo(1, to, 2, SendInline, mr.Sub(0, 8)), b.CompareSwap(1, remote, 1, 2, 0, mr.Sub(0, 8)),
				b.FetchAdd(1, remote, 1, 0, mr.Sub(0, 8)), b.AtomicWrite(1, remote, [8]byte{}, 0),
				b.Flush(1, remote, FlushGlobal, 0), b.FlushRegion(1, remote, FlushGlobal, 0),
				b.LocalInv(1, 2, 0), b.TSO(1, mr.Sub(0, 8), 9, 0, mr.Sub(0, 8)))
			if err != nil {
				return err
			}
			_, err = f.ex.PostSend(b)
			return err
		},
	})
}
