// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Neither Soft-RoCE nor the device in user space has steering, actions,
// counters or work queues, and both say so.
func TestSteeringUnsupported(t *testing.T) {
	found := testdevice.RequireSoftware(t)
	found.Have(t, testdevice.Datagrams)
	testdevice.NoLeaks(t)
	device := must(ibverbs.Open(found.Name))(t)
	pd := must(device.AllocPD())(t)
	cq := must(device.CreateCQ(ibverbs.CQConfig{CompQueue: 1}))(t)
	qp := must(pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeUD, SendCQ: cq, RecvCQ: cq}))(t)
	for name, err := range map[string]error{
		"rule": failed(flow.Create(qp, flow.Config{
			Port: found.Port, Specs: []flow.Spec{flow.UDP{DstPort: flow.Exact[uint16](1)}},
		})),
		"ESP action": failed(flow.CreateESPAction(device, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, 16)}})),
		"counters":   failed(flow.CreateCounters(device)),
		"work queue": failed(flow.CreateWQ(pd, flow.WQConfig{CQ: cq, RecvQueue: 1})),
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
	}
}

// must fails the test for an error and returns the value, which it closes at
// the end of the test.
func must[T interface{ Close() error }](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		return v
	}
}
