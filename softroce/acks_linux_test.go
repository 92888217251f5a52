// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

func init() {
	hostPrograms["acknowledge"] = func(_ []string, stdout, stderr io.Writer) int { return status(stderr, acknowledge(stdout)) }
}

// unsignaled is the number of requests that acknowledge receives.
const unsignaled = 5

// acknowledge accepts a connection, and receives messages. It prints its
// address first, and a line when all have come and are acknowledged.
func acknowledge(stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ep, err := requested(ctx, stdout, rdmacm.AddrInfo{Src: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		return err
	}
	if _, err := ep.CreateQP(nil, ibverbs.QPConfig{RecvQueue: unsignaled}); err != nil {
		return err
	}
	memory, err := ep.RegMsgs(make([]byte, 8))
	if err != nil {
		return err
	}
	for range unsignaled {
		if err := ep.PostRecv(0, memory.All()); err != nil {
			return err
		}
	}
	if err := ep.Accept(ctx, rdmacm.ConnParam{}); err != nil {
		return err
	}
	for range unsignaled {
		if _, err := ep.RecvComp(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, "all")
	_, err = ep.Next(ctx) // the peer disconnects
	return err
}

// Requests that the peer has acknowledged are not flushed, although nothing has
// waited for their acknowledgements.
func TestAcknowledgedRequestsAreNotFlushed(t *testing.T) {
	for name, fail := range map[string]func(qp *ibverbs.QP) error{
		"error state": (*ibverbs.QP).SetError,
		"removal":     func(*ibverbs.QP) error { return softroce.Remove() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := cmtest.Bounded(t)
			server := peer(t, "acknowledge")
			ep, err := endpoint.Create(ctx, rdmacm.AddrInfo{Dst: netip.MustParseAddrPort(server.Line())}, nil, &ibverbs.QPConfig{SendQueue: 8, MaxInline: 8})
			require.NoError(t, err)
			_, err = ep.Connect(ctx, rdmacm.ConnParam{})
			require.NoError(t, err)
			batch, err := ibverbs.NewSendBatch(unsignaled, 1)
			require.NoError(t, err)
			for id := range uint64(unsignaled) {
				require.NoError(t, batch.Send(id, ibverbs.SendInline, ibverbs.InlineBytes(nil)))
			}
			_, err = ep.QP().PostSend(batch)
			require.NoError(t, err)
			require.Equal(t, "all", server.Line())

			t.Cleanup(func() { _ = softroce.Insert() }) // fails unless the device is removed
			require.NoError(t, fail(ep.QP()))
			batch.Reset()
			require.NoError(t, batch.Send(unsignaled, ibverbs.SendSignaled|ibverbs.SendInline, ibverbs.InlineBytes(nil)))
			_, err = ep.QP().PostSend(batch)
			require.NoError(t, err)
			_, err = ep.SendComp(ctx)
			require.ErrorIs(t, err, ibverbs.WCFlushed)
			require.ErrorContains(t, err, fmt.Sprintf("work request %d ", unsignaled), "the first that is flushed")
			require.NoError(t, ep.Close())
		})
	}
}
