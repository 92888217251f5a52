// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestMain(m *testing.M) { os.Exit(fakelib.ProviderMain(m)) }

// rig is the open device with a protection domain. Everything that it makes is
// closed at the end of the test, latest first.
type rig struct {
	t  *testing.T
	p  *fakelib.Provider
	c  *ibverbs.Device
	pd *ibverbs.PD
}

func open(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, p: fakelib.OpenProvider(t)}
	r.c = keep(t, must(ibverbs.Open("fake0"))(t))
	r.pd = keep(t, must(r.c.AllocPD())(t))
	r.p.Forget()
	return r
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

func (r *rig) cq() *ibverbs.CQ {
	r.t.Helper()
	cq := keep(r.t, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8}))(r.t))
	r.p.Forget()
	return cq
}

func (r *rig) qp(qpType ibverbs.QPType) *ibverbs.QP {
	r.t.Helper()
	cq := r.cq()
	qp := keep(r.t, must(r.pd.CreateQP(ibverbs.QPConfig{Type: qpType, SendCQ: cq, RecvCQ: cq}))(r.t))
	r.p.Forget()
	return qp
}
