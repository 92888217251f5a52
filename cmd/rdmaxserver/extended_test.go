// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// The server names its shared receive queue, and receives from it.
func TestExtended(t *testing.T) {
	if !fakelib.RunCM(t) {
		return
	}
	p, c := programtest.FakeLibraries(t)
	p.Next("ibv_query_srq", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1})))
	p.Next("ibv_poll_cq", fakelib.Returns(1, 0))
	status, stdout, stderr := tested.Run("-c x")
	require.Zero(t, status, stderr)
	require.Equal(t, "rdmaxserver: start\nrdmaxserver: end 0\n", stdout)

	srq := p.Last("ibv_create_srq_ex")
	attr := fakelib.Struct[libibverbs.SrqInitAttrEx](srq, 1)
	require.Equal(t, libibverbs.IBV_SRQT_XRC, attr.SrqType)
	require.Equal(t, []int64{srq.Result()}, p.Last("ibv_post_srq_recv").Args()[:1])
	require.EqualValues(t, 4, fakelib.Struct[librdmacm.ConnParam](c.Last("rdma_accept"), 1).PrivateDataLen)
	require.Contains(t, c.Names(), "rdma_disconnect")
}
