// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64 && !race

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cloops"
	"github.com/verbena-go/verbena/internal/testutil/instructions"
)

// counted are the operations of the data path, with a device that always
// succeeds.
func counted(t *testing.T) map[string]func() error {
	f := newFakeDevice(t)
	f.Endless()
	mr := fakeMR(t, 4096, 1)
	one, many := filled(t, mr, 1), filled(t, mr, 64)
	again, err := NewSendBatch(64, 1)
	require.NoError(t, err)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(1, mr.All()))
	wcs := make([]WC, 64)
	segment := mr.Sub(0, 64)
	second := func(_ int, err error) error { return err }
	return map[string]func() error{
		"an empty call":    func() error { cloops.Empty(); return nil },
		"post 1":           func() error { return second(f.qp.PostSend(one)) },
		"post 64":          func() error { return second(f.qp.PostSend(many)) },
		"post 64 extended": func() error { return second(f.ex.PostSend(many)) },
		"post 1 receive":   func() error { return second(f.qp.PostRecv(recv)) },
		"poll 1":           func() error { return second(f.cq.Poll(wcs[:1])) },
		"poll 64":          func() error { return second(f.cq.Poll(wcs)) },
		"exchange 1":       func() error { return second(f.qp.Exchange(recv, one, f.cq, wcs[:1], 1, MaxSpin)) },
		"fill and post 64": func() error {
			again.Reset()
			for i := range 64 {
				if err := again.Send(uint64(i), SendSignaled, segment); err != nil {
					return err
				}
			}
			return second(f.qp.PostSend(again))
		},
	}
}

// TestCounted is what TestInstructions runs.
func TestCounted(t *testing.T) { instructions.Run(t, counted) }

// Each operation takes as many instructions as it did.
func TestInstructions(t *testing.T) { instructions.Check(t, counted) }
