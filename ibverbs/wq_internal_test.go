package ibverbs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nil and zero objects answer with an error.
func TestQueuesNotOpened(t *testing.T) {
	for name, call := range map[string]func(bool) error{
		"PD.CreateWQ": func(zero bool) error {
			return second(pick(zero, &PD{}).CreateWQ(WQConfig{CQ: &CQ{}, MaxWR: 1}))
		},
		"Device.CreateCompCounter": func(zero bool) error {
			return second(pick(zero, &Device{}).CreateCompCounter(CountRequests))
		},
		"Device.QueryCompCounterCaps": func(zero bool) error {
			return second(pick(zero, &Device{}).QueryCompCounterCaps())
		},
		"QP.AttachCompCounter": func(zero bool) error {
			return pick(zero, &QP{}).AttachCompCounter(pick(zero, &CompCounter{}), CountSends)
		},
		"WQ.Close":               func(zero bool) error { return pick(zero, &WQ{}).Close() },
		"WQ.State":               func(zero bool) error { return second(pick(zero, &WQ{}).State()) },
		"WQ.SetState":            func(zero bool) error { return pick(zero, &WQ{}).SetState(WQStateReady) },
		"WQ.SetFlags":            func(zero bool) error { return pick(zero, &WQ{}).SetFlags(0, WQScatterFCS) },
		"WQ.PostRecv":            func(zero bool) error { return second(pick(zero, &WQ{}).PostRecv(nil)) },
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
