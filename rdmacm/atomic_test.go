package rdmacm_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

func TestAtomics(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	counter, err := server.Alloc(8, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic)
	require.NoError(t, err)
	result := alloc(t, client, 8)
	value := func(mr *ibverbs.MR) uint64 { return binary.NativeEndian.Uint64(mr.Bytes()) }

	require.NoError(t, client.FetchAdd(bounded(t), counter.Remote(), 5, result.All()))
	require.Zero(t, value(result))
	require.NoError(t, client.CompareSwap(bounded(t), counter.Remote(), 4, 9, result.All()))
	require.EqualValues(t, 5, value(result))
	require.EqualValues(t, 5, value(counter), "it was not 4")
	require.NoError(t, client.CompareSwap(bounded(t), counter.Remote(), 5, 9, result.All()))
	require.EqualValues(t, 5, value(result))
	require.EqualValues(t, 9, value(counter))
	require.ErrorContains(t, client.FetchAdd(bounded(t), counter.Remote().Sub(4, 8), 1, result.All()), "not a multiple of 8")
}
