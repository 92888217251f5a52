// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/stat"
)

// Counters are added up within a process, and not with those of an engine that
// does not answer, or of another process whose PID is not known either.
func TestMerged(t *testing.T) {
	one := func(owner *stat.Owner, failed string, values ...uint64) device {
		d := device{Process: owner, Error: failed}
		for _, v := range values {
			d.Counters = append(d.Counters, stat.Counter{Name: "requests", Value: v})
		}
		return d
	}
	known, hidden, other := &stat.Owner{PID: 7}, &stat.Owner{}, &stat.Owner{}
	silent := one(known, "the process does not answer")
	require.Equal(t, []device{silent, one(known, "", 3), one(hidden, "", 12), one(other, "", 16)}, merged([]device{
		silent, one(known, "", 1), one(&stat.Owner{PID: 7}, "", 2), one(hidden, "", 4), one(hidden, "", 8), one(other, "", 16),
	}))
}
