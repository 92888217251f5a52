// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// A message of 64 bytes goes back and forth between two ends of this process,
// with and without spinning.
func BenchmarkConnPingPong(b *testing.B) {
	d := needDevice(b)
	for _, spin := range []time.Duration{0, -1} {
		b.Run(fmt.Sprintf("spin=%v", spin), func(b *testing.B) {
			config := &rdmacm.Config{Spin: spin, MaxInline: 64}
			client, server := connect(b, d.IPv4, config, config)
			ctx := b.Context()
			end := func(conn *rdmacm.Conn) (send, recv func() error) {
				mr := alloc(b, conn, 128)
				r, err := conn.NewReceiver(64)
				require.NoError(b, err)
				return func() error { return conn.Send(ctx, mr.Sub(0, 64)) }, func() error { _, err := r.Next(ctx); return err }
			}
			send, recv := end(client)
			answer, hear := end(server)
			done := make(chan error, 1)
			go func() {
				for {
					if err := hear(); err != nil {
						done <- nil
						return
					}
					if err := answer(); err != nil {
						done <- err
						return
					}
				}
			}()
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, send())
				require.NoError(b, recv())
			}
			require.NoError(b, client.Close())
			require.NoError(b, <-done)
		})
	}
}
