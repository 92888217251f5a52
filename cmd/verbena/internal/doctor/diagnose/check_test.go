// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// madeUp are checks of which the second fails and the fourth warns.
func madeUp() []check {
	finds := func(f Finding) func(context.Context, *machine) Finding {
		return func(context.Context, *machine) Finding { return f }
	}
	return []check{
		{name: "power", lack: "no power", look: finds(Finding{Status: OK, Found: "on"})},
		{name: "cable", lack: "no cable", needs: []string{"power"}, look: finds(Finding{
			Status: Fail, Found: "there is none", Remedy: "plug one in", Commands: []string{"plug", "plug harder"},
		})},
		{name: "light", lack: "no light", needs: []string{"power", "cable"}, look: finds(Finding{Status: Fail, Found: "never looked at"})},
		{name: "noise", look: finds(Finding{Status: Warn, Found: "loud", Remedy: "cover your ears"})},
		{name: "heat", needs: []string{"light", "cable"}, look: finds(Finding{Status: OK, Found: "never looked at"})},
	}
}

const madeUpText = `
ok   power: on
FAIL cable: there is none
     do: plug one in
     run: plug
     run: plug harder
skip light, heat: not checked: no cable
warn noise: loud
     do: cover your ears
`

const madeUpJSON = `{
  "works": false,
  "findings": [
    {"check": "power", "status": "ok", "found": "on"},
    {"check": "cable", "status": "FAIL", "found": "there is none", "remedy": "plug one in", "commands": ["plug", "plug harder"]},
    {"check": "light", "status": "skip", "found": "not checked: no cable"},
    {"check": "noise", "status": "warn", "found": "loud", "remedy": "cover your ears"},
    {"check": "heat", "status": "skip", "found": "not checked: no cable"}
  ]
}`

func TestReport(t *testing.T) {
	report := (&machine{}).run(t.Context(), madeUp())
	var text bytes.Buffer
	report.Text(&text)
	require.Equal(t, strings.TrimPrefix(madeUpText, "\n"), text.String())
	b, err := json.Marshal(report)
	require.NoError(t, err)
	require.JSONEq(t, madeUpJSON, string(b))
}

func TestReportOfAMachineThatWorks(t *testing.T) {
	report := (&machine{}).run(t.Context(), madeUp()[:1])
	require.True(t, report.Works)
	var text bytes.Buffer
	report.Text(&text)
	require.Equal(t, "ok   power: on\nRDMA works here.\n", text.String())
	report.Peer = "host"
	text.Reset()
	report.Text(&text)
	require.Equal(t, "ok   power: on\nRDMA works here, and to host.\n", text.String())
}

// Each check has a name of its own, needs only earlier ones, and those have a
// word for what is missing.
func TestChecks(t *testing.T) {
	lacks := map[string]string{}
	for _, c := range slices.Concat(checks, peerChecks) {
		require.NotContains(t, lacks, c.name)
		for _, need := range c.needs {
			require.NotEmpty(t, lacks[need], "%s needs %s", c.name, need)
		}
		require.NotNil(t, c.look)
		lacks[c.name] = c.lack
	}
}

// Wherever this runs, every check finds something, and what fails says what to
// do.
func TestRun(t *testing.T) {
	if testdevice.Soft() { // which most checks are not about
		require.True(t, Run(t.Context(), Peer{}).Works)
		return
	}
	m, err := thisMachine()
	require.NoError(t, err)
	ours := slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return c.where != nil && !c.where(m) })
	require.Len(t, Run(t.Context(), Peer{}).Findings, len(ours))
	report := Run(t.Context(), Peer{Host: "127.0.0.1"})
	require.Len(t, report.Findings, len(ours)+len(peerChecks))
	works := true
	for _, f := range report.Findings {
		require.NotEmpty(t, f.Found, f.Check)
		works = works && f.Status != Fail
		if f.Status == Fail || f.Status == Warn {
			require.True(t, f.Remedy != "" || f.Commands != nil, f)
		}
	}
	require.Equal(t, works, report.Works)
	require.False(t, works, "no device is reached at 127.0.0.1")
}
