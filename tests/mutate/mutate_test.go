// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each change of a small package gets the verdict that its tests deserve, and
// what does not compile gets none.
func TestVerdicts(t *testing.T) {
	p, err := load("./testdata/weak", regexp.MustCompile(""))
	require.NoError(t, err)
	b, err := p.build(t.TempDir())
	require.NoError(t, err)
	b.spare = time.Second
	tests, err := b.survey(regexp.MustCompile("^$"))
	require.NoError(t, err)
	require.Len(t, tests, 2)
	got := map[string]verdict{}
	for _, m := range p.mutants {
		if !m.compiles {
			continue
		}
		v, err := b.try(m, tests)
		require.NoError(t, err)
		got[m.kind+" "+m.source] = v
	}
	require.Equal(t, map[string]verdict{
		"negate n < low":                 killed,
		"boundary n < low":               unreached,
		"remove return low":              killed,
		"force n > high":                 killed,
		"force low <= high":              unreached, // it is true
		"negate n > high && low <= high": killed,
		"negate n > high":                killed,
		"boundary n > high":              unreached,
		"negate low <= high":             killed,
		"boundary low <= high":           unreached,
		"remove return high":             killed,
		"negate n > 0":                   killed,
		"boundary n > 0":                 killed,
		"remove n--":                     timedOut,
		"remove steps++":                 killed,
		"remove n += 2":                  unreached,
		"arithmetic n - 1":               unreached,
	}, got)
}
