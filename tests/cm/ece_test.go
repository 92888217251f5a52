// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// A dialing end uses those of its device's enhancements that the peer has
// taken, as librdmacm would.
func TestEnhancements(t *testing.T) {
	_, err := rdmacm.Devices() // which stay open
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	device, cm := fakelib.OpenProvider(t), fakelib.OpenCM(t)
	offers := func() {
		device.Next("ibv_query_ece", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.Ece{VendorId: 7, Options: 9})))
	}
	takes := func(ece libibverbs.Ece) { cm.Next("rdma_get_remote_ece", fakelib.Writes(1, 0, fakelib.Bytes(&ece))) }
	for name, tt := range map[string]struct {
		config *rdmacm.Config
		plan   func()
		want   []libibverbs.Ece
	}{
		"some":             {nil, func() { offers(); takes(libibverbs.Ece{VendorId: 7, Options: 1}) }, []libibverbs.Ece{{VendorId: 7, Options: 1}}},
		"none":             {nil, func() { offers(); takes(libibverbs.Ece{}) }, []libibverbs.Ece{{VendorId: 7}}},
		"another vendor's": {nil, func() { offers(); takes(libibverbs.Ece{VendorId: 8, Options: 1}) }, []libibverbs.Ece{{VendorId: 7}}},
		"the device has none": {
			nil, func() { device.Next("ibv_query_ece", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0)) }, nil,
		},
		"the queue pair is made without": {&rdmacm.Config{Queues: new(rdmacm.VerbsQP)}, func() {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tt.plan()
			device.Forget()
			conn, err := rdmacm.Dial(bounded(t), address, tt.config)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			var set []libibverbs.Ece
			for _, call := range device.Calls() {
				if call.Name() == "ibv_set_ece" {
					set = append(set, *fakelib.Struct[libibverbs.Ece](call, 1))
				}
			}
			require.Equal(t, tt.want, set)
		})
	}
}
