// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// pages returns a history of pages that are a second apart, of a counter that
// begins again from 0 after 8, and of gauges.
func pages(t *testing.T) (history History) {
	t.Helper()
	registry := prometheus.NewRegistry()
	counts := map[string]float64{}
	gauges := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pairs", Help: "Pairs."}, []string{"device", "state"})
	gauges.WithLabelValues("a", "RTS").Set(2)
	gauges.WithLabelValues("a", "ERR").Set(1)
	gauges.WithLabelValues("b", "RTS").Set(4)
	registry.MustRegister(gauges)
	for _, device := range []string{"a", "b"} {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "packets_total", Help: "Packets.", ConstLabels: prometheus.Labels{"device": device}},
			func() float64 { return counts[device] }))
	}
	for i, a := range []float64{0, 4, 8, 2, 3} {
		counts["a"], counts["b"] = a, 10*float64(i)
		page, err := Take(registry, "n", time.Unix(int64(i), 0))
		require.NoError(t, err)
		history = append(history, page)
	}
	return history
}

func TestEval(t *testing.T) {
	history := pages(t)
	for _, tt := range []struct {
		expr string
		page int
		want map[string]float64 // by labels
	}{
		{`pairs{state="RTS"}`, 0, map[string]float64{`{__name__="pairs", device="a", node="n", state="RTS"}`: 2, `{__name__="pairs", device="b", node="n", state="RTS"}`: 4}},
		{`sum(pairs)`, 0, map[string]float64{`{}`: 7}},
		{`sum by (node, device) (pairs{device=~"a|b"})`, 0, map[string]float64{`{device="a", node="n"}`: 3, `{device="b", node="n"}`: 4}},
		{`(count(pairs) - sum(pairs))`, 0, map[string]float64{`{}`: -4}},
		{`min(pairs)`, 0, map[string]float64{`{}`: 1}},
		{`sum(pairs{state="INIT"}) or vector(0)`, 0, map[string]float64{`{}`: 0}},
		{`sum(pairs{state="ERR"}) or vector(0)`, 0, map[string]float64{`{}`: 1}},
		{`count(pairs) - sum(none)`, 0, nil},
		{`rate(packets_total[1m])`, 0, nil}, // one sample is no rate
		{`sum by (device) (rate(packets_total[1m]))`, 2, map[string]float64{`{device="a"}`: 4, `{device="b"}`: 10}},
		{`rate(packets_total{device="b"}[1s])`, 4, map[string]float64{`{device="b", node="n"}`: 10}},
		{`rate(packets_total{device="a"}[2s])`, 4, map[string]float64{`{device="a", node="n"}`: 1.5}}, // 8, 2, 3: 2 since it began again, and 1
	} {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(tt.expr)
		require.NoError(t, err)
		samples, err := history.Eval(expr, tt.page)
		require.NoError(t, err, tt.expr)
		var got map[string]float64
		for _, s := range samples {
			if got == nil {
				got = map[string]float64{}
			}
			got[s.Labels.String()] = s.Value
		}
		require.Equal(t, tt.want, got, tt.expr)
	}
	for _, text := range []string{`irate(packets_total[1m])`, `max(pairs)`, `pairs * 2`, `pairs - pairs`, `-pairs`, `vector(time())`, `sum(max(pairs))`, `pairs or max(pairs)`} {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		require.NoError(t, err)
		_, err = history.Eval(expr, 1)
		require.ErrorContains(t, err, "no evaluation of", text)
	}
}
