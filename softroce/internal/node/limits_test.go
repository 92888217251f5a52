// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

func TestParseLimits(t *testing.T) {
	const names = "sge=N, read-sge=N, inline=N, reads=N, wr=N, srq-wr=N, cqe=N, qps=N, cqs=N, srqs=N, tags=N, pds=N, mrs=N, mws=N, " +
		"ahs=N, groups=N, dm=N, odp=N, mtu=N, atomics=N, flush=N, atomic-write=N, imm=N, rc=N, uc=N, ud=N, xrc=N, null-mr=N, iwarp=N, client-first=N, counters=N, parent-domains=N, imports=N, pacing=N, rnr=N, solicited=N, query=N, late=N"
	for text, tt := range map[string]struct {
		change func(*engine.Limits)
		err    string
	}{
		"":                            {change: func(*engine.Limits) {}},
		"sge=1":                       {change: func(l *engine.Limits) { l.SGE = 1 }},
		"sge=1,inline=0,reads=0":      {change: func(l *engine.Limits) { l.SGE, l.Inline, l.Reads = 1, 0, 0 }},
		"sge=1,sge=2":                 {change: func(l *engine.Limits) { l.SGE = 2 }},
		"mtu=256":                     {change: func(l *engine.Limits) { l.MTU = libibverbs.IBV_MTU_256 }},
		"mtu=2048":                    {change: func(l *engine.Limits) { l.MTU = libibverbs.IBV_MTU_2048 }},
		"atomics=0,imm=1,iwarp=1":     {change: func(l *engine.Limits) { l.Atomics, l.IWARP = false, true }},
		"smallest,atomics=1,srqs=3":   {change: func(l *engine.Limits) { require.NoError(t, setLimits(l, limitSets[0].limits+",atomics=1,srqs=3")) }},
		"nonsense":                    {err: `unknown limit "nonsense": want ` + names + "; or first a set, one of " + setNames()},
		"sge=1,smallest":              {err: `unknown limit "smallest": want ` + names + "; or first a set, one of " + setNames()},
		"smallest,":                   {err: `unknown limit "": want ` + names + "; or first a set, one of " + setNames()},
		"smallest=1":                  {err: `unknown limit "smallest=1": want ` + names + "; or first a set, one of " + setNames()},
		"sge":                         {err: `sge is "": want a number from 1 to 32`},
		"sge=0":                       {err: `sge is "0": want a number from 1 to 32`},
		"sge=33":                      {err: `sge is "33": want a number from 1 to 32`},
		"wr=-1":                       {err: `wr is "-1": want a number from 1 to 16384`},
		"inline=99999999999999999999": {err: `inline is "99999999999999999999": want a number from 0 to 1024`},
		"cqe=4294967297":              {err: `cqe is "4294967297": want a number from 1 to 4194303`},
		"ud=2":                        {err: `ud is "2": want 0 or 1`},
		"mtu=1500":                    {err: `mtu is "1500": want 256, 512, 1024, 2048 or 4096`},
		"mtu=128":                     {err: `mtu is "128": want 256, 512, 1024, 2048 or 4096`},
		"mtu=8192":                    {err: `mtu is "8192": want 256, 512, 1024, 2048 or 4096`},
	} {
		t.Run(text, func(t *testing.T) {
			l, err := parseLimits(text)
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			want := engine.Largest()
			tt.change(&want)
			require.Equal(t, want, l)
		})
	}
}

// Each set is valid, and has less than the largest device. A set that begins
// with another may change what that has.
func TestLimitSets(t *testing.T) {
	for _, s := range limitSets {
		l, err := parseLimits(s.name)
		require.NoError(t, err, s.name)
		require.NotEqual(t, engine.Largest(), l, s.name)
		if l.IWARP {
			require.False(t, l.UC || l.UD, "%s: iWARP has reliable connections only", s.name)
		}
		require.False(t, l.XRC || l.NullMR || l.Flush || l.AtomicWrite || l.Imports || l.DM+l.ODP+l.Tags+l.Counters > 0, "%s has what lacking says", s.name)
	}
	siw, err := parseLimits("siw,sge=5")
	require.NoError(t, err)
	require.False(t, siw.ClientFirst)
	require.Equal(t, []any{true, uint32(5), uint32(1), uint32(80)}, []any{siw.IWARP, siw.SGE, siw.ReadSGE, siw.Inline})
}

// Whatever the text is, the result is a device that can exist or an error.
func FuzzLimits(f *testing.F) {
	for _, s := range limitSets {
		f.Add(s.name)
		f.Add(s.limits)
	}
	f.Add("sge=0")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLimits(text)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		most := engine.Largest()
		for _, m := range limits {
			if m.of != nil {
				require.LessOrEqual(t, *m.of(&l), *m.of(&most), m.name)
				require.GreaterOrEqual(t, *m.of(&l), m.min, m.name)
			}
		}
		require.True(t, l.MTU >= libibverbs.IBV_MTU_256 && l.MTU <= libibverbs.IBV_MTU_4096)
	})
}

func TestSetLimits(t *testing.T) {
	choices.Lock()
	made, before := choices.made, choices.limits
	choices.made, choices.limits = false, nil
	choices.Unlock()
	t.Cleanup(func() {
		choices.Lock()
		defer choices.Unlock()
		choices.made, choices.limits = made, before
	})
	require.ErrorContains(t, SetLimits("sge=0"), "want a number")
	t.Setenv(LimitsVariable, "inline=none")
	require.EqualError(t, CheckLimits(), `VERBENA_LIMITS=inline=none: inline is "none": want a number from 0 to 1024`)
	require.NoError(t, SetLimits("sge=2"), "the environment does not count")
	require.NoError(t, SetLimits("sge=1"), "the device is not in use yet")
	l, err := chosenLimits()
	require.NoError(t, err)
	require.EqualValues(t, 1, l.SGE)
	require.NoError(t, SetLimits("sge=1"), "is in use")
	require.ErrorIs(t, SetLimits("sge=2"), errInUse)

	choices.made, choices.limits = false, nil
	_, err = chosenLimits()
	require.ErrorContains(t, err, "VERBENA_LIMITS=inline=none")
	choices.made, choices.limits = false, nil
	t.Setenv(LimitsVariable, "inline=7")
	l, err = chosenLimits()
	require.NoError(t, err)
	require.EqualValues(t, 7, l.Inline)
	require.NoError(t, SetLimits("inline=7"), "is in use")
	require.NoError(t, SetLimits("tags=4096,inline=3,inline=7"), "is the same in other words")
	require.ErrorIs(t, SetLimits("smallest"), errInUse)
	require.False(t, strings.Contains(setNames(), "=")) // the grammar tells sets from limits by that
}

// docs/softroce.md has a row for each limit and each set.
func TestLimitsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/softroce.md")
	require.NoError(t, err)
	document := string(text)
	most := engine.Largest()
	for _, m := range limits {
		row := regexp.MustCompile("(?m)^\\| `" + m.name + "` \\| .* \\| (\\d+) \\| (\\d+)[^|]* \\|$").FindStringSubmatch(document)
		require.NotNil(t, row, m.name)
		if m.of != nil {
			require.Equal(t, []string{fmt.Sprint(m.min), fmt.Sprint(*m.of(&most))}, row[1:], m.name)
		}
	}
	require.Contains(t, document, "`"+strings.TrimSuffix(lacking, ",")+"`")
	for _, s := range limitSets {
		require.Contains(t, document, "| `"+strings.TrimPrefix(s.limits, lacking)+"` |", s.name)
		require.Contains(t, document, "\n| `"+s.name+"` |")
	}
}
