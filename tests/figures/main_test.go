// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The documents have the ranges over the runs that were recorded. Rows of no
// document may be recorded, too.
func TestPages(t *testing.T) {
	all, err := recorded("../..")
	require.NoError(t, err)
	d, err := read("../..")
	require.NoError(t, err)
	for _, r := range all {
		if line := d.find(r.key()); line != "" {
			require.Equal(t, r.String(), line, "a run that is recorded by scripts/bench all-native writes it")
		}
	}
}

func TestSpan(t *testing.T) {
	for name, tt := range map[string]struct {
		values []string
		want   string
	}{
		"one":             {[]string{"1.25 us"}, "1.25 us"},
		"the same":        {[]string{"7", "7", "7"}, "7"},
		"some":            {[]string{"9 us", "10 us", "8.5 us"}, "8.5 to 10 us"},
		"rounds":          {[]string{"0.1, 0.9, 7.0", "0.2, 0.8, 0.9"}, "0.8 to 0.9"},
		"several":         {[]string{"1.0 and 2; -3", "4 and 2; 0.5"}, "1.0 to 4 and 2; -3 to 0.5"},
		"empty":           {[]string{"", ""}, ""},
		"another text":    {[]string{"1 us", "2 ms"}, "2 ms"},
		"one has nothing": {[]string{"1", ""}, ""},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, span(tt.values)) })
	}
}

func TestUpdate(t *testing.T) {
	rows, err := parse("# a run\nconnecting\t| tcp | 3 us | 1 |\nclients\t| redis | 200 | tcp | 5 |\n")
	require.NoError(t, err)
	d := documents{pages[0]: "text\n| tcp | 1 us | 2 |\n| tcp | 1 us |\n| redis | 200 | tcp | 4 |\n| redis | 1000 | tcp | 4 |\n"}
	d.update(rows)
	require.Equal(t, "text\n| tcp | 3 us | 1 |\n| tcp | 1 us |\n| redis | 200 | tcp | 5 |\n| redis | 1000 | tcp | 4 |\n", d[pages[0]])
	require.Equal(t, "| redis | 200 | tcp | 5 |", d.find(rows[1].key()))
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{"| a | b |", "unknown\t| a | b | c |", "clients\t| a | 1 | tcp |", "clients\ttext"} {
		_, err := parse(line)
		require.Error(t, err, line)
		require.True(t, strings.Contains(err.Error(), line[:3]), err)
	}
}
