// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// connectEndpoint returns an address with a connection, closed with the test.
func connectEndpoint(t *testing.T) *endpoint.Endpoint {
	t.Helper()
	to := rdmacm.AddrInfo{Dst: netip.MustParseAddrPort(address)}
	ep, err := endpoint.Create(bounded(t), to, nil, &ibverbs.QPConfig{SendQueue: 1, RecvQueue: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	_, err = ep.Connect(bounded(t), rdmacm.ConnParam{})
	require.NoError(t, err)
	return ep
}

// interrupted is a context that lets something happen when it is first looked
// at.
type interrupted struct {
	context.Context
	once   sync.Once
	happen func()
}

func (i *interrupted) Err() error {
	i.once.Do(i.happen)
	return i.Context.Err()
}

// A peer that ends the connection just when this end begins to is its answer:
// no second event comes.
func TestDisconnectCrosses(t *testing.T) {
	c := open(t)
	ep := connectEndpoint(t)
	c.Next("rdma_disconnect", fakelib.Returns(0, 0))
	ctx := &interrupted{Context: bounded(t), happen: func() {
		become(c, rdmacm.EventDisconnected, 0)
		require.NoError(t, ep.ID().WriteUserEvent(0, 0))
		ev, err := ep.Next(bounded(t))
		require.NoError(t, err)
		require.Equal(t, rdmacm.EventDisconnected, ev.Type)
	}}
	require.NoError(t, ep.Disconnect(ctx))
}
