// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/transfer"
)

// answerer writes to the peer that has dialed it, which does nothing. On iWARP,
// an end that accepts a connection fails if it sends before the other end.
func answerer(_ []string, stdout, stderr io.Writer) int {
	err := func() error {
		ctx := context.Background()
		var engines [2]*transfer.Engine
		for i := range engines {
			e, err := transfer.New(transfer.Config{Connections: 3})
			if err != nil {
				return err
			}
			defer e.Close()
			engines[i] = e
		}
		ln, err := engines[0].Listen(ctx, "10.77.0.1:0", transfer.ListenConfig{})
		if err != nil {
			return err
		}
		region, err := engines[1].Alloc(slot, transfer.RegionConfig{Name: "memory", Access: all})
		if err != nil {
			return err
		}
		dialed, err := engines[1].Dial(ctx, ln.Addr().String(), transfer.DialConfig{})
		if err != nil {
			return err
		}
		peer, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		remote, err := peer.Region(ctx, "memory")
		if err != nil {
			return err
		}
		for i := range 100 {
			data := bytes.Repeat([]byte{byte(i)}, slot)
			if err := write(ctx, peer, remote, data); err != nil {
				return err
			}
			if !bytes.Equal(data, region.Bytes()) {
				return fmt.Errorf("other bytes have arrived than were written")
			}
		}
		var lost uint64
		for _, p := range []*transfer.Peer{peer, dialed} {
			for _, d := range p.Stats().Devices {
				lost += d.Lost
			}
		}
		fmt.Fprintf(stdout, "lost connections: %d\n", lost)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// The end that has dialed is the first to send on each connection.
func TestDialerSendsFirst(t *testing.T) {
	needSoft(t)
	cmd := process.Command(t, "answerer")
	cmd.Env = append(cmd.Env, "VERBENA_LIMITS=iwarp")
	p := process.Start(t, cmd)
	require.Zero(t, p.Wait(), p.Output())
	require.Equal(t, "lost connections: 0\n", p.Stdout())
}
