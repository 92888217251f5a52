// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
)

// Nil and zero objects answer with an error.
func TestNotOpened(t *testing.T) {
	type objects struct {
		device   *ibverbs.Device
		pd       *ibverbs.PD
		cq       *ibverbs.CQ
		qp       *ibverbs.QP
		wq       *flow.WQ
		rule     *flow.Rule
		action   *flow.Action
		counters *flow.Counters
		table    *flow.IndirectionTable
	}
	zero := objects{
		new(ibverbs.Device), new(ibverbs.PD), new(ibverbs.CQ), new(ibverbs.QP), new(flow.WQ),
		new(flow.Rule), new(flow.Action), new(flow.Counters), new(flow.IndirectionTable),
	}
	for name, call := range map[string]func(objects) error{
		"Create":          func(o objects) error { return failed(flow.Create(o.qp, flow.Config{})) },
		"CreateESPAction": func(o objects) error { return failed(flow.CreateESPAction(o.device, flow.ESPConfig{})) },
		"CreateCounters":  func(o objects) error { return failed(flow.CreateCounters(o.device)) },
		"CreateIndirectionTable": func(o objects) error {
			return failed(flow.CreateIndirectionTable(o.device, []*flow.WQ{o.wq}))
		},
		"CreateRSSQP": func(o objects) error {
			return failed(flow.CreateRSSQP(o.pd, flow.RSSConfig{Table: o.table, Key: make([]byte, flow.RSSKeyLen)}))
		},
		"CreateWQ": func(o objects) error {
			return failed(flow.CreateWQ(o.pd, flow.WQConfig{CQ: o.cq, RecvQueue: 1}))
		},
		"WQ.Close":               func(o objects) error { return o.wq.Close() },
		"WQ.State":               func(o objects) error { return failed(o.wq.State()) },
		"WQ.SetState":            func(o objects) error { return o.wq.SetState(flow.WQStateReady) },
		"WQ.SetFlags":            func(o objects) error { return o.wq.SetFlags(0, flow.WQScatterFCS) },
		"WQ.PostRecv":            func(o objects) error { return failed(o.wq.PostRecv(nil)) },
		"Rule.Close":             func(o objects) error { return o.rule.Close() },
		"Action.Close":           func(o objects) error { return o.action.Close() },
		"Action.ModifyESP":       func(o objects) error { return o.action.ModifyESP(flow.ESPConfig{}) },
		"Counters.Close":         func(o objects) error { return o.counters.Close() },
		"Counters.Read":          func(o objects) error { return o.counters.Read(nil, false) },
		"Counters.Attach":        func(o objects) error { return o.counters.Attach(0, flow.CounterBytes, nil) },
		"IndirectionTable.Close": func(o objects) error { return o.table.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, call(zero), os.ErrInvalid)
			require.ErrorIs(t, call(objects{}), os.ErrInvalid)
		})
	}
}

func TestExact(t *testing.T) {
	require.Equal(t, flow.Match[uint8]{7, 0xff}, flow.Exact[uint8](7))
	require.Equal(t, flow.Match[uint16]{7, 0xffff}, flow.Exact[uint16](7))
	require.Equal(t, flow.Match[uint32]{7, 0xffffffff}, flow.Exact[uint32](7))
	mac := flow.MAC{2, 0, 0, 0, 0xa, 0xbc}
	require.Equal(t, flow.Match[flow.MAC]{mac, flow.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, flow.Exact(mac))
	require.Equal(t, "02:00:00:00:0a:bc", mac.String())
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
