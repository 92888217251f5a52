// SPDX-License-Identifier: Apache-2.0

package links

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

// A check that fails as the server ends says nothing about the device. One that
// fails while the server is there does.
func TestServerEnds(t *testing.T) {
	if err := softroce.Use(softroce.Config{}); err != nil {
		t.Skip(err) // this program cannot call C
	}
	device := testdevice.Require(t)
	for ends, want := range map[bool]check.Outcome{true: check.NotRun, false: check.Failed} {
		server := &peer.Server{}
		require.NoError(t, server.Listen(t.Context(), device.IPv4.String()+":0"))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- server.Serve(ctx) }()
		session, err := peer.Join(t.Context(), device.IPv4, server.Addr().String())
		require.NoError(t, err)
		runner := check.Runner{Target: check.Target{Device: device.Name, Port: device.Port, Peer: session}}
		results := runner.Run(t.Context(), []check.Check{{Name: "fails", Run: on(func(r *rig) {
			if ends {
				cancel()
				r.ok(<-served)
				for session.Err() == nil {
					runtime.Gosched() // until the end is known here, too
				}
			}
			r.Failf("disconnected")
		})}})
		require.Equal(t, want, results[0].Outcome, results[0].Found)
		require.NoError(t, session.Close())
		cancel()
		if !ends {
			require.NoError(t, <-served)
		}
		require.NoError(t, server.Close())
	}
	require.Empty(t, ibverbs.OpenObjects())
}
