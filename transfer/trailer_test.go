// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/transfer"
)

// A notification comes after its batch's data, once, and nothing writes to the
// data's place after it, whenever connections end.
func TestNotificationsBehindData(t *testing.T) {
	needDevice(t)
	const rounds = 16
	for name, breaks := range map[string]func(p *pair, round int, submitted bool){
		"no connection ends": func(*pair, int, bool) {},
		"when the notification has come": func(p *pair, _ int, submitted bool) {
			if !submitted {
				transfer.BreakAllData(p.accepted)
			}
		},
		"when the batch is submitted": func(p *pair, round int, submitted bool) {
			if submitted {
				for range round * 50 {
					runtime.Gosched()
				}
				transfer.BreakAllData([]*transfer.Peer{p.dialed, p.accepted}[round%2])
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			p := newPair(t, transfer.Config{RetryTimeout: time.Minute})
			remote, err := p.dialed.Region(ctx, "memory")
			require.NoError(t, err)
			place, data := p.atB.Bytes()[:slot], make([]byte, slot)
			taken := bytes.Repeat([]byte{0xee}, slot)
			b := p.dialed.NewBatch(1)
			for round := range rounds {
				size := slot
				if round%2 == 0 {
					size = 100 // one work request
				}
				copy(data, bytes.Repeat([]byte{byte(round + 1)}, size))
				b.Reset()
				require.NoError(t, b.Write(remote, 0, data[:size]))
				require.NoError(t, b.Notify(fmt.Append(nil, round)))
				require.NoError(t, b.Submit(ctx))
				breaks(p, round, true)
				message, err := p.accepted.Receive(ctx)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(round), string(message))
				require.True(t, bytes.Equal(data[:size], place[:size]))
				copy(place, taken)
				breaks(p, round, false)
				require.NoError(t, b.Wait(ctx))
				require.True(t, bytes.Equal(taken, place), "round %d", round)
			}
			require.NoError(t, p.dialed.Send(ctx, []byte("last")))
			message, err := p.accepted.Receive(ctx)
			require.NoError(t, err)
			require.Equal(t, "last", string(message))
			cmtest.Soon(t, "all are counted", func() bool { return p.dialed.Stats().Sent == rounds+1 && p.accepted.Stats().Received == rounds+1 })
		})
	}
}
