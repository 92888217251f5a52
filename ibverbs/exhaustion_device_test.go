package ibverbs_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// What the device cannot give is refused with the call, the object and the
// numbers, and nothing is left of it.
func TestTooMuch(t *testing.T) {
	r := open(t)
	attr := must(r.c.QueryDevice())(t)
	cq := r.cq(1, nil)
	qp := func(c ibverbs.QPConfig) error {
		c.SendCQ, c.RecvCQ = cq, cq
		return second(r.pd.CreateQP(c))
	}
	above := func(name string, n, limit int) string {
		return fmt.Sprintf(", %s %d is above the device's %d): ", name, n, limit)
	}
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"send queue": {qp(ibverbs.QPConfig{MaxSendWR: attr.MaxQPWR + 1}), []string{
			"ibv_create_qp (PD ", "of " + r.c.Name() + above("MaxSendWR", attr.MaxQPWR+1, attr.MaxQPWR),
		}},
		"huge":          {qp(ibverbs.QPConfig{MaxSendWR: math.MaxInt32}), []string{"ibv_create_qp (PD ", "of " + r.c.Name()}},
		"receive queue": {qp(ibverbs.QPConfig{MaxRecvWR: attr.MaxQPWR + 1}), []string{"ibv_create_qp (PD ", above("MaxRecvWR", attr.MaxQPWR+1, attr.MaxQPWR)}},
		"segments":      {qp(ibverbs.QPConfig{MaxSendWR: 1, MaxSendSGE: attr.MaxSGE + 1}), []string{"ibv_create_qp (PD ", above("MaxSendSGE", attr.MaxSGE+1, attr.MaxSGE)}},
		"inline": {qp(ibverbs.QPConfig{MaxSendWR: 1, MaxInline: 1 << 20}), []string{
			"ibv_create_qp (PD ", ", MaxInline 1048576 may be above the device's limit, which it does not tell): ",
		}},
		"completions": {
			second(r.c.CreateCQ(ibverbs.CQConfig{Entries: attr.MaxCQE + 1})),
			[]string{"ibv_create_cq (", " entries on " + r.c.Name() + above("Entries", attr.MaxCQE+1, attr.MaxCQE)},
		},
		"no completions": {
			second(r.c.CreateCQ(ibverbs.CQConfig{})),
			[]string{"ibv_create_cq (" + r.c.Name() + "): Entries is 0, not from 1 to 2147483647"},
		},
		"more than C can say": {
			second(r.c.CreateCQ(ibverbs.CQConfig{Entries: math.MaxInt})),
			[]string{fmt.Sprintf("): Entries is %d, not from 1 to 2147483647", math.MaxInt)},
		},
		"negative vector": {
			second(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: -1})),
			[]string{"): Vector is -1, and the device has 0 to "},
		},
		"shared receive queue": {
			second(r.pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: attr.MaxSRQWR + 1})),
			[]string{"ibv_create_srq (PD ", above("MaxWR", attr.MaxSRQWR+1, attr.MaxSRQWR)},
		},
		"segments of a shared receive queue": {
			second(r.pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: 1, MaxSGE: attr.MaxSRQSGE + 1})),
			[]string{"ibv_create_srq (PD ", above("MaxSGE", attr.MaxSRQSGE+1, attr.MaxSRQSGE)},
		},
		"resized": {cq.Resize(attr.MaxCQE + 1), []string{"ibv_resize_cq (CQ ", above("Entries", attr.MaxCQE+1, attr.MaxCQE)}},
		"memory":  {second(r.pd.Alloc(math.MaxInt, 0)), []string{fmt.Sprintf("map %d bytes: cannot allocate memory", math.MaxInt)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, tt.err)
			t.Log(tt.err)
			for _, want := range tt.want {
				require.ErrorContains(t, tt.err, want)
			}
			if e := (*ibverbs.Error)(nil); errors.As(tt.err, &e) {
				require.NotZero(t, e.Errno)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }
