// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	hundred := make([]time.Duration, 101)
	for i := range hundred {
		hundred[i] = time.Duration(200-i) * time.Microsecond
	}
	for _, tt := range []struct {
		all  []time.Duration
		want Durations
	}{
		{hundred, Durations{100, 150, 150, 190, 199, 200}},
		{[]time.Duration{1500}, Durations{1.5, 1.5, 1.5, 1.5, 1.5, 1.5}},
		{[]time.Duration{3000, 1000}, Durations{1, 2, 1, 1, 1, 3}},
		{[]time.Duration{0, 0, 0}, Durations{}},
	} {
		require.Equal(t, tt.want, Of(tt.all))
	}
	text, err := json.Marshal(Of([]time.Duration{1500}))
	require.NoError(t, err)
	require.JSONEq(t, `{"min_us":1.5,"mean_us":1.5,"p50_us":1.5,"p90_us":1.5,"p99_us":1.5,"max_us":1.5}`, string(text))
}
