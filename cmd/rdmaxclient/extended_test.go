// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package main

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// The client sends to the shared receive queue that the server has named.
func TestExtended(t *testing.T) {
	if !fakelib.RunCM(t) {
		return
	}
	p, c := programtest.FakeLibraries(t)
	run := func(privateData []byte) (status int, stderr string) {
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(&privateData[0])
		c.Next("event") // the address is resolved
		c.Next("event") // and the route
		accepted := librdmacm.ConnParam{PrivateData: unsafe.Pointer(&privateData[0]), PrivateDataLen: uint8(len(privateData))}
		c.Next("event", fakelib.Writes(0, unsafe.Offsetof(librdmacm.CmEvent{}.Param), fakelib.Bytes(&accepted)))
		status, _, stderr = tested.Run("-c x -s server")
		return status, stderr
	}
	p.Next("ibv_poll_cq", fakelib.Returns(1, 0)) // which succeeds
	status, stderr := run([]byte{0, 0, 0x12, 0x34})
	require.Zero(t, status, stderr)
	wr := fakelib.Struct[libibverbs.SendWr](p.Last("ibv_post_send"), 1)
	require.EqualValues(t, 0x1234, wr.QpType.Xrc().RemoteSrqn)
	require.Equal(t, libibverbs.IBV_WR_SEND, wr.Opcode)

	p.Forget()
	status, stderr = run([]byte{1, 2, 3})
	require.Equal(t, 1, status)
	require.Equal(t, "rdmaxclient: the server's private data has 3 bytes, too few for the number of its shared receive queue\n", stderr)
	require.NotContains(t, p.Names(), "ibv_post_send")
}
