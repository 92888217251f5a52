package ibverbs_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything that must happen may take.
const patience = 20 * time.Second

// rig is an open device with a protection domain. Everything that it makes is
// closed at the end of the test, latest first.
type rig struct {
	t      testing.TB
	device testdevice.Device
	c      *ibverbs.Device
	pd     *ibverbs.PD
}

// open makes a rig, or skips the test, which must leave nothing behind.
func open(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, device: testdevice.Require(t)}
	testdevice.NoLeaks(t)
	r.c = must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(r.c)
	r.pd = must(r.c.AllocPD())(t)
	r.cleanup(r.pd)
	return r
}

// sub returns a rig for a subtest, with the same device and domain.
func (r *rig) sub(t testing.TB) *rig {
	t.Helper()
	testdevice.NoLeaks(t)
	return &rig{t: t, device: r.device, c: r.c, pd: r.pd}
}

// must fails the test for an error and returns the value.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func (r *rig) cleanup(c io.Closer) {
	r.t.Cleanup(func() { require.NoError(r.t, c.Close()) })
}

const anyAccess = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead

func (r *rig) alloc(size int, access ibverbs.AccessFlags) *ibverbs.MR {
	r.t.Helper()
	mr := must(r.pd.Alloc(size, access))(r.t)
	r.cleanup(mr)
	return mr
}

func (r *rig) channel() *ibverbs.CompChannel {
	r.t.Helper()
	ch := must(r.c.CreateCompChannel())(r.t)
	r.cleanup(ch)
	return ch
}

// cq makes a queue; ch may be nil.
func (r *rig) cq(entries int, ch *ibverbs.CompChannel) *ibverbs.CQ {
	r.t.Helper()
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: entries, Channel: ch}))(r.t)
	r.cleanup(cq)
	return cq
}

func (r *rig) qp(config ibverbs.QPConfig) *ibverbs.QP {
	r.t.Helper()
	qp := must(r.pd.CreateQP(config))(r.t)
	r.cleanup(qp)
	return qp
}

// limit returns a context that ends in good time before the test's own end.
func limit(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// collect polls, and waits if the queue has a channel, for n completions.
func collect(t testing.TB, cq *ibverbs.CQ, n int) []ibverbs.WC {
	t.Helper()
	wcs := make([]ibverbs.WC, n)
	end := time.Now().Add(patience)
	for got := 0; got < n; {
		k := must(cq.Poll(wcs[got:]))(t)
		got += k
		if k == 0 && time.Now().After(end) {
			require.FailNow(t, "no completion", "%d of %d came", got, n)
		}
	}
	return wcs
}
