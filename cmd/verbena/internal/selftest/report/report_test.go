// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// made are checks of a device that does not exist, and what they found.
var made = []check.Check{
	{Name: "requests.write", Proves: "a write arrives", Features: []check.Feature{check.Connections, check.Sockets, check.Transfers}},
	{Name: "keys.remote", Proves: "wrong keys are refused", Features: []check.Feature{check.Protection, check.Diagnosis}, Matters: "Only the status differs."},
	{Name: "windows.bind", Proves: "a window opens", Features: []check.Feature{check.Windows}},
	{Name: "windows.close", Proves: "a window closes", Features: []check.Feature{check.Windows}},
	{Name: "atomics.add", Proves: "fetch and add adds", Features: []check.Feature{check.Atomics}, Do: "Use no atomic operations."},
	{Name: "memory.huge", Proves: "huge pages are memory", Features: []check.Feature{check.Memory}},
}

func makeReport() Report {
	return New("verbena v1.2.3", 12.25, System{Kernel: "6.12.48-amd64", Processor: "amd64", Libraries: "libibverbs and librdmacm from rdma-core 65.0"},
		Device{
			Driver: "mlx5_core", Board: "MT_0000000012", VendorID: 0x2c9, PartID: 4125, Firmware: "22.41.1000", Transport: "IBV_TRANSPORT_IB",
			LinkLayer: "Ethernet", GIDType: "RoCE v2", RateGbps: 100, MTU: 4096, Attributes: Limits{MaxQP: 131072, MaxSGE: 30},
		},
		[]check.Result{
			{Check: "requests.write", Outcome: check.OK, Notes: []string{"100 bytes"}, Milliseconds: 3},
			{Check: "keys.remote", Outcome: check.Differs, Found: "1 of 2 cases end otherwise", Cases: []check.Case{
				{Case: "write, key 0", Specification: "WCRemoteAccess", SoftRoCE: "WCRemoteAccess", UserSpace: "WCRemoteAccess", Yours: "WCRemoteOperation"},
				{Case: "read, key 0", Specification: "WCRemoteAccess", SoftRoCE: "WCFlushed", UserSpace: "WCRemoteAccess", Yours: "WCRemoteAccess", Known: true},
			}},
			{Check: "windows.bind", Outcome: check.NotOffered, Found: "memory windows"},
			{Check: "windows.close", Outcome: check.NotOffered, Found: "memory windows"},
			{Check: "atomics.add", Outcome: check.Failed, Found: "1 + 1 is 3"},
			{Check: "memory.huge", Outcome: check.NotRun, Found: "no huge pages are reserved"},
		})
}

func TestPage(t *testing.T) {
	for file, p := range map[string]Page{
		"page.txt": {Checks: made, File: "report.json"},
		"all.txt":  {Checks: made, All: true},
	} {
		var b bytes.Buffer
		require.NoError(t, p.Write(&b, makeReport()))
		golden.Compare(t, "testdata/"+file, b.String())
	}
}

// The page says what is in the file.
func TestIdentityOnPage(t *testing.T) {
	r := makeReport()
	r.Identity = &Identity{Host: "node7"}
	var b bytes.Buffer
	require.NoError(t, Page{Checks: made, File: "report.json"}.Write(&b, r))
	require.Contains(t, b.String(), "report.json has addresses, names and GUIDs, as -I asks.")
	require.NotContains(t, b.String(), "has no addresses")
}

func TestVerdict(t *testing.T) {
	change := func(i int, to check.Outcome) func(r *Report) { return func(r *Report) { r.Results[i].Outcome = to } }
	for want, change := range map[string]func(r *Report){
		"Verbena WORKS on this device.": change(4, check.OK),

		"Verbena WORKS on this device, EXCEPT FOR: atomic operations.": change(4, check.Failed),

		"VERBENA DOES NOT WORK on this device: protection of memory, errors that say what was wrong, atomic operations.": change(1, check.Failed),

		"It is NOT KNOWN whether Verbena works on this device: not run: connections (rdmacm), net.Conn over RDMA (rsocket), transfers (transfer).": change(0, check.NotRun),
	} {
		r := makeReport()
		change(&r)
		require.Equal(t, want, Page{Checks: made}.Verdict(r))
	}
}

// What no check of connections needs may be there on a device without
// connections.
func TestNotOffered(t *testing.T) {
	p := Page{Checks: append(slices.Clone(made), check.Check{Name: "connections.messages", Features: []check.Feature{check.Connections}})}
	r := makeReport()
	r.Results = append(r.Results, check.Result{Check: "connections.messages", Outcome: check.NotOffered})
	r.Results[4].Outcome = check.OK
	require.Equal(t, "Verbena WORKS on this device, which DOES NOT OFFER: connections (rdmacm).", p.Verdict(r))
	r.Results[4].Outcome = check.Failed
	require.Equal(t, "Verbena WORKS on this device, EXCEPT FOR: atomic operations, connections (rdmacm).", p.Verdict(r))

	// Nor is it known to work if the check that shows it was not run.
	r.Results[4].Outcome, r.Results[len(r.Results)-1].Outcome = check.OK, check.NotRun
	require.Equal(t, "It is NOT KNOWN whether Verbena works on this device: not run: connections (rdmacm).", p.Verdict(r))

	p = Page{Checks: []check.Check{{Name: "atomics.add", Features: []check.Feature{check.Atomics}}, {Name: "soak.connection", Features: []check.Feature{check.Atomics}}}}
	r.Results = []check.Result{{Check: "atomics.add", Outcome: check.NotOffered}, {Check: "soak.connection", Outcome: check.OK}}
	state, _ := p.feature(r, check.Atomics)
	require.Equal(t, "not offered", state)
}

func TestJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	want := makeReport()
	require.NoError(t, want.Write(file))
	got, err := Read(t.Context(), file)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestCompare(t *testing.T) {
	var b bytes.Buffer
	differ, err := Compare(&b, makeReport(), makeReport())
	require.NoError(t, err)
	require.False(t, differ)
	require.True(t, strings.HasSuffix(b.String(), "\nAll checks have the same outcome.\n"))

	other := makeReport()
	other.Device = Device{Driver: "softroce", LinkLayer: "Ethernet", GIDType: "RoCE v2", MTU: 4096}
	other.Results[1].Outcome, other.Results[1].Found, other.Results[1].Cases[0].Yours = check.OK, "", "WCRemoteAccess"
	other.Results[2].Outcome, other.Results[2].Found = check.OK, ""
	other.Results = append(other.Results[:5], check.Result{Check: "xrc.send", Outcome: check.OK})
	b.Reset()
	differ, err = Compare(&b, makeReport(), other)
	require.NoError(t, err)
	require.True(t, differ)
	golden.Compare(t, "testdata/compare.txt", b.String())
}

// A report of a stranger's is text for a terminal, and nothing else.
func TestCompareHostile(t *testing.T) {
	r := makeReport()
	r.Device.Firmware, r.Results[0].Check, r.Results[1].Cases[0].Case, r.Results[4].Found = "\x1b[2J", "\x1bc", "\u009b2J\nverbena", "a\tb"
	r.Results[4].Outcome = check.Differs
	var b bytes.Buffer
	_, err := Compare(&b, makeReport(), r)
	require.NoError(t, err)
	require.Equal(t, b.String(), strings.Map(func(c rune) rune {
		if c != '\n' && !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, b.String()))
	require.Equal(t, 1, strings.Count(b.String(), "\nverbena"))
}

// What identifies a machine does not get into a report.
func TestPrivate(t *testing.T) {
	p := NewPrivate(ibverbs.DeviceInfo{Device: ibverbs.DeviceEntry{Name: "mlx5_0"}, Ports: []ibverbs.PortInfo{{NetDev: "ens1f0"}}}, "server7")
	for text, want := range map[string]string{
		"QP 17 of mlx5_0: port 1 of mlx5_01":                  "QP 17 of DEVICE: port 1 of mlx5_01",
		"ens1f0 to server7: no route":                         "INTERFACE to PEER: no route",
		"192.0.2.1:7471 and 10.0.0.255":                       "ADDRESS:7471 and ADDRESS",
		"fe80::1 and 2001:db8::1:2%ens1f0":                    "ADDRESS and ADDRESS",
		"::1 and ::ffff:192.0.2.1":                            "ADDRESS and ADDRESS",
		"gid=0000:0000:0000:0000:0000:ffff:c000:0201 mtu=1":   "gid=ADDRESS mtu=1",
		"guid 0011:2233:4455:6677":                            "guid ADDRESS",
		"00:1b:21:ab:cd:ef is up":                             "MAC is up",
		"0x00112233aabbccdd":                                  "GUID",
		"check: 12 of 13 bytes; 6.12.48-amd64; ibv_post_send": "check: 12 of 13 bytes; 6.12.48-amd64; ibv_post_send",
	} {
		require.Equal(t, want, p.Text(text))
	}
	results := []check.Result{{Found: "mlx5_0", Notes: []string{"10.0.0.1"}, Cases: []check.Case{{Yours: "fe80::1"}}}}
	require.Equal(t, []check.Result{{Found: "DEVICE", Notes: []string{"ADDRESS"}, Cases: []check.Case{{Yours: "ADDRESS"}}}}, p.Results(results))
	require.Equal(t, "mlx5_0", results[0].Found)
}
