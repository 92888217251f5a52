// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rsocket_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// Read and Write allocate nothing, whether they spin for what they wait for or
// park. The race detector makes sync.Pool forget, which the soft device uses.
func TestTransfersAllocateNothing(t *testing.T) {
	if os.Getenv("VERBENA_HOSTILE") != "" {
		t.Skip("the hostile device itself allocates")
	}
	if check := os.Getenv("VERBENA_CHECK"); check != "" && check != "0" {
		t.Skip("the check of memory allocates when a function posts in a way in which none has before")
	}
	for name, config := range map[string]rsocket.Config{
		"spins":           {},
		"parks":           {Spin: -1},
		"spins in a pool": {Pool: new(rsocket.Pool)},
		"parks in a pool": {Pool: new(rsocket.Pool), Spin: -1},
	} {
		config.KeepAlive = -1
		t.Run(name, func(t *testing.T) { requireNoAllocations(t, config) })
	}
}

func requireNoAllocations(t *testing.T, config rsocket.Config) {
	a, b := pair(t, config, config)
	for _, c := range []net.Conn{a, b} { // a timer that fires later
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Hour)))
	}
	go func() { // echoes
		message := make([]byte, 1<<17)
		for {
			n, err := b.Read(message)
			if err == nil {
				_, err = b.Write(message[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	for name, size := range map[string]int{"inline": 8, "message": 1000, "long": 100_000} {
		t.Run(name, func(t *testing.T) {
			out, in := make([]byte, size), make([]byte, size)
			turn := func() {
				if _, err := a.Write(out); err != nil {
					t.Error(err)
				}
				if _, err := io.ReadFull(a, in); err != nil {
					t.Error(err)
				}
			}
			turn()
			// The device in user space keeps as many packets as have been on
			// their way at a time, which may become more in a later turn.
			allocated := 1.0
			for tries := 0; allocated > 0 && tries < 10; tries++ {
				allocated = testing.AllocsPerRun(200, turn)
			}
			require.Zero(t, allocated)
		})
	}
}
