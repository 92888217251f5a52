package ibverbs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// Soft-RoCE has no work queues, steering or counters, and says so.
func TestSteeringUnsupported(t *testing.T) {
	r := open(t)
	if !strings.HasPrefix(r.device.Name, "rxe") {
		t.Skip("this device may have them")
	}
	cq := r.cq(1, nil)
	qp := r.qp(ibverbs.QPConfig{Type: ibverbs.QPTypeUD, SendCQ: cq, RecvCQ: cq})
	for name, create := range map[string]func() error{
		"work queue": func() error { return failed(r.pd.CreateWQ(ibverbs.WQConfig{CQ: cq, MaxWR: 1})) },
		"flow": func() error {
			return failed(qp.CreateFlow(ibverbs.FlowConfig{
				Port: r.device.Port, Specs: []ibverbs.FlowSpec{ibverbs.FlowUDP{DstPort: ibverbs.Exact[uint16](1)}},
			}))
		},
		"ESP action": func() error {
			return failed(r.c.CreateESPAction(ibverbs.ESPConfig{Key: &ibverbs.AESGCM{Key: make([]byte, 16)}}))
		},
		"counters":                func() error { return failed(r.c.CreateCounters()) },
		"completion counter":      func() error { return failed(r.c.CreateCompCounter(ibverbs.CountRequests)) },
		"completion counter caps": func() error { return failed(r.c.QueryCompCounterCaps()) },
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, create(), errors.ErrUnsupported) })
	}
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
