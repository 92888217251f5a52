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
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"send queue":    {qp(ibverbs.QPConfig{MaxSendWR: attr.MaxQPWR + 1}), []string{"ibv_create_qp (PD ", "of " + r.c.Name()}},
		"huge":          {qp(ibverbs.QPConfig{MaxSendWR: math.MaxInt32}), []string{"ibv_create_qp (PD ", "of " + r.c.Name()}},
		"receive queue": {qp(ibverbs.QPConfig{MaxRecvWR: attr.MaxQPWR + 1}), []string{"ibv_create_qp (PD "}},
		"segments":      {qp(ibverbs.QPConfig{MaxSendWR: 1, MaxSendSGE: attr.MaxSGE + 1}), []string{"ibv_create_qp (PD "}},
		"inline":        {qp(ibverbs.QPConfig{MaxSendWR: 1, MaxInline: 1 << 20}), []string{"ibv_create_qp (PD "}},
		"completions": {
			second(r.c.CreateCQ(ibverbs.CQConfig{Entries: attr.MaxCQE + 1})),
			[]string{"ibv_create_cq (", " entries on " + r.c.Name() + ")"},
		},
		"no completions": {
			second(r.c.CreateCQ(ibverbs.CQConfig{})),
			[]string{"ibv_create_cq (0 entries on " + r.c.Name() + "): invalid argument"},
		},
		"more than C can say": {
			second(r.c.CreateCQ(ibverbs.CQConfig{Entries: math.MaxInt})),
			[]string{fmt.Sprintf("ibv_create_cq (%d entries on ", math.MaxInt)},
		},
		"negative vector": {
			second(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: -1})),
			[]string{"ibv_create_cq (vector -1 of "},
		},
		"memory": {second(r.pd.Alloc(math.MaxInt, 0)), []string{fmt.Sprintf("map %d bytes: cannot allocate memory", math.MaxInt)}},
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
