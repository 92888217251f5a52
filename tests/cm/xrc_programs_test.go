// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"bytes"
	"os"
	"os/signal"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxserver"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// openForProgram is open for a test in which a program runs that waits for
// signals, for which Go has a goroutine from the first time on.
func openForProgram(t *testing.T) *fakelib.Provider {
	t.Helper()
	_, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	stop()
	return open(t)
}

// rdmaxclient sends to the shared receive queue that the server has named.
func TestRDMAXClient(t *testing.T) {
	c := openForProgram(t)
	p := fakelib.OpenProvider(t)
	run := func(privateData []byte) (status int, stderr string) {
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(&privateData[0])
		keep(c) // the address is resolved
		keep(c) // and the route
		accepted := librdmacm.ConnParam{PrivateData: unsafe.Pointer(&privateData[0]), PrivateDataLen: uint8(len(privateData))}
		c.Next("event").Writes(0, unsafe.Offsetof(librdmacm.CmEvent{}.Param), fakelib.Bytes(&accepted))
		var out, errs bytes.Buffer
		return rdmaxclient.Main([]string{"-c", "x", "-s", "server"}, &out, &errs), errs.String()
	}
	p.Next("ibv_poll_cq").Returns(1, 0) // which succeeds
	status, stderr := run([]byte{0, 0, 0x12, 0x34})
	require.Zero(t, status, stderr)
	wr := fakelib.Struct[libibverbs.SendWr](called(t, p, "ibv_post_send"), 1)
	require.EqualValues(t, 0x1234, wr.QpType.Xrc().RemoteSrqn)
	require.Equal(t, libibverbs.IBV_WR_SEND, wr.Opcode)

	p.Forget()
	status, stderr = run([]byte{1, 2, 3})
	require.Equal(t, 1, status)
	require.Equal(t, "rdmaxclient: the server's private data has 3 bytes, too few for the number of its shared receive queue\n", stderr)
	require.NotContains(t, p.Names(), "ibv_post_send")
}

// rdmaxserver names its shared receive queue, and receives from it.
func TestRDMAXServer(t *testing.T) {
	c := openForProgram(t)
	p := fakelib.OpenProvider(t)
	p.Next("ibv_query_srq").Writes(1, 0, fakelib.Bytes(&libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}))
	p.Next("ibv_poll_cq").Returns(1, 0)
	var out, errs bytes.Buffer
	require.Zero(t, rdmaxserver.Main([]string{"-c", "x"}, &out, &errs), errs.String())
	require.Equal(t, "rdmaxserver: start\nrdmaxserver: end 0\n", out.String())

	srq := called(t, p, "ibv_create_srq_ex")
	attr := fakelib.Struct[libibverbs.SrqInitAttrEx](srq, 1)
	require.Equal(t, libibverbs.IBV_SRQT_XRC, attr.SrqType)
	require.Equal(t, []int64{srq.Result()}, called(t, p, "ibv_post_srq_recv").Args()[:1])
	require.EqualValues(t, 4, fakelib.Struct[librdmacm.ConnParam](called(t, c, "rdma_accept"), 1).PrivateDataLen)
	require.Contains(t, c.Names(), "rdma_disconnect")
}
