package ibverbs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nil and zero objects answer with an error.
func TestSteeringNotOpened(t *testing.T) {
	for name, call := range map[string]func(bool) error{
		"PD.CreateWQ": func(zero bool) error {
			return second(pick(zero, &PD{}).CreateWQ(WQConfig{CQ: &CQ{}, MaxWR: 1}))
		},
		"PD.CreateRSSQP": func(zero bool) error {
			return second(pick(zero, &PD{}).CreateRSSQP(RSSConfig{Table: &IndirectionTable{}, Key: make([]byte, RSSKeyLen)}))
		},
		"Device.CreateIndirectionTable": func(zero bool) error {
			return second(pick(zero, &Device{}).CreateIndirectionTable([]*WQ{pick(zero, &WQ{})}))
		},
		"Device.CreateESPAction": func(zero bool) error {
			return second(pick(zero, &Device{}).CreateESPAction(ESPConfig{}))
		},
		"Device.CreateCounters": func(zero bool) error { return second(pick(zero, &Device{}).CreateCounters()) },
		"Device.CreateCompCounter": func(zero bool) error {
			return second(pick(zero, &Device{}).CreateCompCounter(CountRequests))
		},
		"Device.QueryCompCounterCaps": func(zero bool) error {
			return second(pick(zero, &Device{}).QueryCompCounterCaps())
		},
		"QP.CreateFlow": func(zero bool) error { return second(pick(zero, &QP{}).CreateFlow(FlowConfig{})) },
		"QP.AttachCompCounter": func(zero bool) error {
			return pick(zero, &QP{}).AttachCompCounter(pick(zero, &CompCounter{}), CountSends)
		},
		"WQ.Close":               func(zero bool) error { return pick(zero, &WQ{}).Close() },
		"WQ.State":               func(zero bool) error { return second(pick(zero, &WQ{}).State()) },
		"WQ.SetState":            func(zero bool) error { return pick(zero, &WQ{}).SetState(WQStateReady) },
		"WQ.SetFlags":            func(zero bool) error { return pick(zero, &WQ{}).SetFlags(0, WQScatterFCS) },
		"WQ.PostRecv":            func(zero bool) error { return second(pick(zero, &WQ{}).PostRecv(nil)) },
		"IndirectionTable.Close": func(zero bool) error { return pick(zero, &IndirectionTable{}).Close() },
		"Flow.Close":             func(zero bool) error { return pick(zero, &Flow{}).Close() },
		"FlowAction.Close":       func(zero bool) error { return pick(zero, &FlowAction{}).Close() },
		"FlowAction.ModifyESP":   func(zero bool) error { return pick(zero, &FlowAction{}).ModifyESP(ESPConfig{}) },
		"Counters.Close":         func(zero bool) error { return pick(zero, &Counters{}).Close() },
		"Counters.Read":          func(zero bool) error { return pick(zero, &Counters{}).Read(nil, false) },
		"Counters.AttachFlow":    func(zero bool) error { return pick(zero, &Counters{}).AttachFlow(0, CounterBytes, nil) },
		"CompCounter.Close":      func(zero bool) error { return pick(zero, &CompCounter{}).Close() },
		"CompCounter.Read":       func(zero bool) error { return second(pick(zero, &CompCounter{}).Read()) },
		"CompCounter.ReadErrors": func(zero bool) error { return second(pick(zero, &CompCounter{}).ReadErrors()) },
		"CompCounter.Set":        func(zero bool) error { return pick(zero, &CompCounter{}).Set(1) },
		"CompCounter.SetErrors":  func(zero bool) error { return pick(zero, &CompCounter{}).SetErrors(1) },
		"CompCounter.Add":        func(zero bool) error { return pick(zero, &CompCounter{}).Add(1) },
		"CompCounter.AddErrors":  func(zero bool) error { return pick(zero, &CompCounter{}).AddErrors(1) },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, call(true), os.ErrInvalid)
			require.ErrorIs(t, call(false), os.ErrInvalid)
		})
	}
}

func TestExact(t *testing.T) {
	require.Equal(t, FlowMatch[uint8]{7, 0xff}, Exact[uint8](7))
	require.Equal(t, FlowMatch[uint16]{7, 0xffff}, Exact[uint16](7))
	require.Equal(t, FlowMatch[uint32]{7, 0xffffffff}, Exact[uint32](7))
	mac := MAC{2, 0, 0, 0, 0xa, 0xbc}
	require.Equal(t, FlowMatch[MAC]{mac, MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}, Exact(mac))
	require.Equal(t, "02:00:00:00:0a:bc", mac.String())
}
