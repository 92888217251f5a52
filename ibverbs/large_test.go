// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// largeSize is the length of the writes of these tests.
const largeSize = 1 << 20

// Large writes of several queue pairs at the same time arrive whole. Beside
// them others end, and after that nothing uses their memory.
func TestLargeWritesBesideEnds(t *testing.T) {
	r := open(t)
	const rounds = 4
	var others sync.WaitGroup
	var over atomic.Bool
	failed := make(chan error, 2)
	for i := range cap(failed) {
		x, _ := r.pair(nil)
		a := &speaker{end: x, wcs: make([]ibverbs.WC, 1)}
		from, to := r.alloc(largeSize, anyAccess), r.alloc(largeSize, anyAccess)
		others.Go(func() {
			for n := byte(i); !over.Load(); n += 2 {
				if err := writeLarge(a, from, to, n); err != nil {
					failed <- fmt.Errorf("writer %d: %w", i, err)
					return
				}
			}
		})
	}
	t.Cleanup(others.Wait)
	t.Cleanup(func() { over.Store(true) })
	canary := append(bytes.Repeat([]byte{0x3A}, largeSize), bytes.Repeat([]byte{0xC5}, largeSize)...)
	var all [][]byte
	for round := range rounds {
		for name, end := range map[string]func(a, b *end, from, to *ibverbs.MR) error{
			"target":             func(_, _ *end, _, to *ibverbs.MR) error { return to.Close() },
			"source":             func(_, _ *end, from, _ *ibverbs.MR) error { return from.Close() },
			"requester's errors": func(a, _ *end, _, _ *ibverbs.MR) error { return a.qp.SetError() },
			"responder's errors": func(_, b *end, _, _ *ibverbs.MR) error { return b.qp.SetError() },
			"requester":          func(a, _ *end, _, _ *ibverbs.MR) error { return a.qp.Close() },
			"responder":          func(_, b *end, _, _ *ibverbs.MR) error { return b.qp.Close() },
		} {
			t.Run(fmt.Sprint(name, " ", round), func(t *testing.T) {
				r := &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: r.pd} // sub would wait for the writers
				a, b := r.pair(nil)
				memory := make([]byte, 2*largeSize)
				from, to := must(r.pd.Register(memory[:largeSize], anyAccess))(t), must(r.pd.Register(memory[largeSize:], anyAccess))(t)
				pattern(from.Bytes(), byte(round))
				for range 1 + rand.IntN(3) {
					require.NoError(t, a.send.Write(1, to.Remote(), ibverbs.SendSignaled, from.All()))
				}
				_, err := a.qp.PostSend(a.send)
				require.NoError(t, err)
				wcs := make([]ibverbs.WC, depth)
				for range rand.IntN(40) {
					_, err := a.sendCQ.Poll(wcs)
					require.NoError(t, err)
				}
				require.NoError(t, end(a, b, from, to))
				require.NoError(t, from.Close())
				require.NoError(t, to.Close())
				copy(memory, canary) // the program uses the memory for something else
				all = append(all, memory)
			})
		}
		select {
		case err := <-failed:
			require.NoError(t, err)
		default:
		}
	}
	over.Store(true)
	others.Wait()
	for i, memory := range all {
		require.True(t, bytes.Equal(canary, memory), "%d", i)
	}
}

// writeLarge writes what the number n makes, and compares.
func writeLarge(a *speaker, from, to *ibverbs.MR, n byte) error {
	pattern(from.Bytes(), n)
	a.send.Reset()
	if err := a.send.Write(1, to.Remote(), ibverbs.SendSignaled, from.All()); err != nil {
		return err
	}
	if _, err := a.qp.PostSend(a.send); err != nil {
		return err
	}
	if err := a.spin(a.sendCQ); err != nil {
		return err
	}
	if !bytes.Equal(from.Bytes(), to.Bytes()) {
		return fmt.Errorf("write %d: other bytes have arrived", n)
	}
	return nil
}
