// SPDX-License-Identifier: Apache-2.0

package links

import (
	"errors"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
)

// figures judge nothing: they are for the report.
var figures = []check.Check{
	{Name: "figures.latency", Proves: "latency can be measured", Features: []check.Feature{check.Connections}, Run: on(func(r *rig) { r.measure(false) })},
	{Name: "figures.bandwidth", Proves: "bandwidth can be measured", Features: []check.Feature{check.Connections}, Run: on(func(r *rig) { r.measure(true) })},
}

func (r *rig) measure(bandwidth bool) {
	for i, test := range peer.FigureTests {
		if test.Bandwidth != bandwidth || test.Op == measure.Read && !r.reads() {
			continue
		}
		r.Scope(func() {
			at := r.service(peer.Figures, i)
			r.Reserve(4 * (test.Sizes[0] + 4096)) // at both ends
			var row measure.Row
			err := measure.Run(r.Context(), &test, peer.Figure(r.device, r.Target().Port, at.Addr(), at.Port()), measure.Tell{
				Ready: func() {}, Row: func(m measure.Row) { row = m },
			})
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				r.Notef("%s: %v", test.Name(), err)
			case err != nil:
				r.Skipf("%s: %v", test.Name(), err)
			case bandwidth:
				r.Notef("%s, %d bytes: %.2f Gb/s", &test, row.Bytes, row.Gigabits)
			default:
				r.Notef("%s, %d bytes: median %.2f us, 99%% within %.2f us, sleeping until there are completions", &test, row.Bytes, row.Typical, row.P99)
			}
		})
	}
}
