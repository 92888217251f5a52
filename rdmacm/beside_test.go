// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Goroutines send, read and write while another one waits for messages, at both
// ends. Each call ends, and each message arrives, whichever goroutine takes the
// completion.
func TestCallsBesideAReceiver(t *testing.T) {
	d := needDevice(t)
	const senders, messages, size = 3, 300, 16
	for name, tt := range map[string]struct {
		config  rdmacm.Config
		receive func(conn *rdmacm.Conn) (func(context.Context) (*rdmacm.Message, error), error)
	}{
		"Receive": {rdmacm.Config{MaxInline: size, MessageSize: size}, func(conn *rdmacm.Conn) (func(context.Context) (*rdmacm.Message, error), error) {
			return conn.Receive, nil
		}},
		"Receiver": {rdmacm.Config{MaxInline: size}, func(conn *rdmacm.Conn) (func(context.Context) (*rdmacm.Message, error), error) {
			r, err := conn.NewReceiver(size)
			return r.Next, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			client, server := connect(t, d.IPv4, &tt.config, &tt.config)
			regions := map[*rdmacm.Conn]*ibverbs.MR{client: alloc(t, client, size), server: alloc(t, server, size)}
			errs := make(chan error, 2*(senders+1))
			var all sync.WaitGroup
			for _, end := range []struct{ conn, peer *rdmacm.Conn }{{client, server}, {server, client}} {
				next, err := tt.receive(end.conn)
				require.NoError(t, err)
				all.Go(func() { errs <- receiveAll(ctx, next, senders, messages) })
				remote := regions[end.peer].Remote()
				local := alloc(t, end.conn, senders*size)
				for i := range uint64(senders) {
					all.Go(func() { errs <- sendAll(ctx, end.conn, i, messages, local.Sub(int(i)*size, size), remote) })
				}
			}
			all.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
		})
	}
}

// sendAll sends numbered messages. After some, it also reads and writes the
// peer's memory.
func sendAll(ctx context.Context, conn *rdmacm.Conn, from, messages uint64, local ibverbs.Segment, remote ibverbs.RemoteBuffer) error {
	for n := range messages {
		data := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, from), n)
		if err := conn.Send(ctx, ibverbs.InlineBytes(data)); err != nil {
			return err
		}
		if n%8 != 0 {
			continue
		}
		if err := conn.Write(ctx, remote, local); err != nil {
			return err
		}
		if err := conn.Read(ctx, local, remote); err != nil {
			return err
		}
	}
	return nil
}

// receiveAll receives the messages of sendAll from a number of senders. Those
// of each come in order.
func receiveAll(ctx context.Context, next func(context.Context) (*rdmacm.Message, error), senders, messages uint64) error {
	want := make([]uint64, senders)
	for range senders * messages {
		m, err := next(ctx)
		if err != nil {
			return err
		}
		from, n := binary.BigEndian.Uint64(m.Data), binary.BigEndian.Uint64(m.Data[8:])
		if n != want[from] {
			return fmt.Errorf("message %d of sender %d, want %d", n, from, want[from])
		}
		want[from]++
	}
	return nil
}
