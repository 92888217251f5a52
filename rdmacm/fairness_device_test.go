package rdmacm_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// Many goroutines, each with a connection, get on alike, though their completions
// are there at once.
func TestGoroutinesGetOnAlike(t *testing.T) {
	const conns, rounds = 100, 50
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
	least, most := counts[0].Load(), counts[0].Load()
	for i := range counts {
		least, most = min(least, counts[i].Load()), max(most, counts[i].Load())
	}
	t.Logf("%d to %d reads each, %d on average", least, most, rounds)
	require.GreaterOrEqual(t, least, int64(rounds/5))
	require.LessOrEqual(t, most, int64(rounds*4))
}
