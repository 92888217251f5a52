// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package vendor

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestMain(m *testing.M) { os.Exit(fakelib.VendorMain(m)) }

// rig is the open device, with what queue pairs need. Everything that it makes
// is closed at the end of the test, latest first.
type rig struct {
	t      *testing.T
	verbs  *fakelib.Provider // libibverbs
	driver *fakelib.Provider // the driver's library
	device *ibverbs.Device
	pd     *ibverbs.PD
	cq     *ibverbs.CQ
	mr     *ibverbs.MR
	ah     *ibverbs.AH
}

func open(t *testing.T, library string) *rig {
	t.Helper()
	r := &rig{t: t, verbs: fakelib.OpenProvider(t), driver: fakelib.OpenVendor(t, library)}
	r.device = keep(t, must(ibverbs.Open("fake0"))(t))
	r.pd = keep(t, must(r.device.AllocPD())(t))
	r.cq = keep(t, must(r.device.CreateCQ(ibverbs.CQConfig{CompQueue: 8}))(t))
	r.mr = keep(t, must(r.pd.Alloc(4096, ibverbs.AccessLocalWrite))(t))
	r.ah = keep(t, must(r.pd.CreateAH(ibverbs.AHAttr{Port: 1, DLID: 3}))(t))
	r.forget()
	return r
}

func (r *rig) forget() {
	r.verbs.Forget()
	r.driver.Forget()
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// keep closes an object at the end of the test.
func keep[T interface{ Close() error }](t *testing.T, o T) T {
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }

// address returns where a value is, for a plan.
func address[T any](v *T) int64 { return int64(uintptr(unsafe.Pointer(v))) }

// modified returns the attributes and the mask of each call of ibv_modify_qp.
func (r *rig) modified() (masks []ibverbs.QPAttrMask) {
	for _, call := range r.verbs.Calls() {
		require.Equal(r.t, "ibv_modify_qp", call.Name())
		masks = append(masks, ibverbs.QPAttrMask(call.Arg(2)))
	}
	return masks
}
