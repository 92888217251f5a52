//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// An accepted end has asked for nothing, so no event is an answer: what says
// that no more will come ends it.
func TestAcceptedDatagramsHearOfTheEnd(t *testing.T) {
	c := open(t)
	ln, err := rdmacm.ListenDatagram(bounded(t), address, nil)
	require.NoError(t, err)
	req, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	c.Next("rdma_accept").Returns(0, 0) // for datagrams it has no event
	conn, err := req.Accept(bounded(t), nil)
	require.NoError(t, err)
	become(c, rdmacm.EventConnectError, -int(syscall.EIO))
	require.NoError(t, conn.ID().WriteUserEvent(0, 0))
	select {
	case <-conn.Done():
	case <-bounded(t).Done():
		require.Fail(t, "the end goes on")
	}
	require.ErrorIs(t, conn.Err(), syscall.EIO)
	require.NoError(t, conn.Close())
	require.NoError(t, ln.Close())
}
