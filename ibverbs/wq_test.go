package ibverbs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// Soft-RoCE has no work queues or completion counters, and says so.
func TestQueuesUnsupported(t *testing.T) {
	r := open(t)
	if !strings.HasPrefix(r.device.Name, "rxe") {
		t.Skip("this device may have them")
	}
	cq := r.cq(1, nil)
	for name, create := range map[string]func() error{
		"work queue":              func() error { return failed(r.pd.CreateWQ(ibverbs.WQConfig{CQ: cq, MaxWR: 1})) },
		"completion counter":      func() error { return failed(r.c.CreateCompCounter(ibverbs.CountRequests)) },
		"completion counter caps": func() error { return failed(r.c.QueryCompCounterCaps()) },
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, create(), errors.ErrUnsupported) })
	}
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
