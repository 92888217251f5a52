package ibverbs_test

import (
	"errors"
	"math"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// objects are one of each kind that the device has, parents last.
func (r *rig) objects(t *testing.T) []interface{ Close() error } {
	t.Helper()
	c := must(ibverbs.Open(r.device.Name))(t)
	pd, ch := must(c.AllocPD())(t), must(c.CreateCompChannel())(t)
	cq := must(c.CreateCQ(ibverbs.CQConfig{Entries: 4, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	srq := must(pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: 1}))(t)
	config := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}
	rc := must(pd.CreateQP(config))(t)
	config.Type, config.SRQ = ibverbs.QPTypeUD, srq
	ud := must(pd.CreateQP(config))(t)
	return []interface{ Close() error }{
		must(pd.Alloc(64, ibverbs.AccessLocalWrite))(t), must(pd.AllocMW(ibverbs.MWType1))(t), must(pd.AllocMW(ibverbs.MWType2))(t),
		must(pd.CreateAH(r.path()))(t), rc, ud, srq, cq, ch, pd, c,
	}
}

// ofTests are methods that only these tests have.
var ofTests = map[string]bool{"SysfsGIDTable": true, "SysfsGIDEntry": true, "UnlessRemoved": true}

// The device's C library meets no closed object and no argument that crashes
// it. tests/provider has this for all kinds of objects that there are.
func TestMisuse(t *testing.T) {
	r := open(t)
	objects := r.objects(t)
	noFile := (*os.File)(nil) // package os panics for one that it has not opened
	call := func(m misuse.Method, args func(reflect.Type) reflect.Value) error {
		_, err := m.Call(args)
		var p *misuse.Panic
		require.False(t, errors.As(err, &p), "%v", err)
		return err
	}
	for _, n := range []int64{0, -1, math.MaxInt64} {
		for _, o := range objects {
			for _, m := range misuse.Methods(o) {
				if m.Name != "Close" && !ofTests[m.Name] {
					_ = call(m, misuse.Filled(n, noFile))
					_ = call(m, misuse.Zero)
				}
			}
		}
	}
	for _, o := range objects {
		require.NoError(t, o.Close())
	}
	for _, o := range objects {
		require.NoError(t, o.Close())
		for _, m := range misuse.Methods(o) {
			err := call(m, misuse.Filled(1, noFile))
			if m.Fails && m.Name != "Close" && !ofTests[m.Name] {
				require.Error(t, err, m.Name)
			}
		}
	}
}
