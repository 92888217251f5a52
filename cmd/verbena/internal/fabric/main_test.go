// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/fabric"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/golden"
	"github.com/verbena-go/verbena/internal/testutil/ibsim"
)

var tested = programtest.Of(Commands)

func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"discover -l -j":   "verbena fabric discover: -l and -j exclude each other",
		"discover 5":       `unexpected argument "5"`,
		"discover -i 0":    "expected a number from 1 to 1024",
		"node 0x":          `address "0x" is neither a LID nor a route such as 0,1,5`,
		"node 0,0":         "port is 0, want 1 to 254",
		"node 65535":       "LID 65535 is not one that a port can have, which are 1 to 49151",
		"node 5 1":         `unexpected argument "1"`,
		"port 5 255":       `port "255" is not a number from 0 to 254`,
		"port 5 x":         `port "x" is not a number from 0 to 254`,
		"counters 5 256":   `port "256" is not a number from 0 to 255`,
		"counters -n -1":   "expected a number from 0 to 100",
		"switch -t 0":      "expected milliseconds",
		"switch -y secret": `the M_Key "secret" is not a number of 64 bits`,
		"node -p 255":      "expected a number from 1 to 254",
	} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 2, status, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
		require.Contains(t, stderr, "; -h lists the flags\n", args)
	}
}

// madeUp is a fabric of a switch, a host, and a node that does not answer.
func madeUp() *fabric.Topology {
	s := &fabric.Node{
		NodeInfo:    fabric.NodeInfo{BaseVersion: 1, ClassVersion: 1, Type: fabric.Switch, NumPorts: 2, GUID: 0x2c90300000001, PortGUID: 0x2c90300000001, DeviceID: 0xcb20, VendorID: 0x2c9, LocalPort: 1},
		Description: "leaf", Switch: &fabric.SwitchInfo{LinearFDBCap: 49152, EnhancedPort0: true},
	}
	h := &fabric.Node{
		NodeInfo:    fabric.NodeInfo{BaseVersion: 1, ClassVersion: 1, Type: fabric.ChannelAdapter, NumPorts: 1, GUID: 0x2c90300000002, PortGUID: 0x2c90300000003, SystemGUID: 0x2c90300000002, LocalPort: 1},
		Description: "host \xe9", // as it may come
	}
	route, err := fabric.RouteThrough(1)
	if err != nil {
		panic(err)
	}
	s.Route = route
	up := fabric.PortInfo{Width: link.Width4X, Speed: link.HDR, State: link.Active, PhysState: link.PhysLinkUp}
	s.Ports = []*fabric.Port{
		{Node: s, Number: 0, GUID: s.GUID, Known: true, PortInfo: fabric.PortInfo{LID: 3}},
		{Node: s, Number: 1, GUID: s.GUID, Known: true, PortInfo: up},
		{Node: s, Number: 2, GUID: s.GUID},
	}
	up.LID = 4
	h.Ports = []*fabric.Port{{Node: h, Number: 1, GUID: h.PortGUID, Known: true, PortInfo: up}}
	h.Ports[0].Peer, s.Ports[1].Peer = s.Ports[1], h.Ports[0]
	return &fabric.Topology{Nodes: []*fabric.Node{h, s}, Problems: []*fabric.Problem{
		{Node: s, Port: 2, Err: &fabric.Error{Op: "NodeInfo", Address: fabric.AtRoute(route), Err: fabric.ErrNoAnswer}},
		{Err: &fabric.Error{Op: "NodeInfo", Err: errors.New("odd")}},
	}}
}

const table = `
NODE    TYPE             GUID                LID  PORTS  ROUTE
host é  Channel Adapter  0x0002c90300000002  4    1      0
leaf    Switch           0x0002c90300000001  3    2      0,1

PORT      PEER    STATE   SPEED
host é 1  leaf 1  active  200 Gb/s (4X HDR)
`

const net = `
#
# Topology file
#
# Initiated from node 0002c90300000002 port 0002c90300000003

vendid=0x0
devid=0x0
sysimgguid=0x2c90300000002
caguid=0x2c90300000002
Ca	1 "H-0002c90300000002"		# "host é"
[1](2c90300000003) 	"S-0002c90300000001"[1]		# lid 4 lmc 0 "leaf" lid 3 4xHDR

vendid=0x2c9
devid=0xcb20
switchguid=0x2c90300000001(2c90300000001)
Switch	2 "S-0002c90300000001"		# "leaf" enhanced port 0 lid 3 lmc 0
[1]	"H-0002c90300000002"[1](2c90300000003) 		# "host é" lid 4 4xHDR
`

func TestPrintTopology(t *testing.T) {
	topology := madeUp()
	topology.Nodes[0].Description = "host é"
	for want, d := range map[string]discover{table: {}, net: {asNet: true}} {
		var b bytes.Buffer
		require.NoError(t, d.printTopology(&b, topology))
		require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(b.String()))
	}
}

// A node that says it is of an unknown type has question marks, as with
// ibnetdiscover.
func TestPrintUnknownType(t *testing.T) {
	topology := madeUp()
	topology.Nodes[0].Type = 77
	var b bytes.Buffer
	require.NoError(t, printNet(&b, topology))
	require.Contains(t, b.String(), "\n???guid=0x2c90300000002\n???\t1 \"?-0002c90300000002\"\t")
	require.Contains(t, b.String(), "\n[1]\t\"?-0002c90300000002\"[1]")
}

// The fields of JSON are those of docs/guide/programs.md.
func TestJSON(t *testing.T) {
	topology := madeUp()
	topology.Nodes[0].Description = "host é"
	var b bytes.Buffer
	d := discover{}
	d.asJSON = true
	require.NoError(t, d.printTopology(&b, topology))
	golden.Compare(t, "testdata/discover.json", b.String())

	l := local{asJSON: true}
	address := fabric.AtLID(4)
	for file, report := range map[string]any{
		"node.json":   nodeReport{address, "host", topology.Nodes[0].NodeInfo},
		"port.json":   portReport{address, 1, topology.Nodes[0].Ports[0].PortInfo},
		"switch.json": switchReport{fabric.AtLID(3), *topology.Nodes[1].Switch},
		"counters.json": []counterReport{
			{LID: 4, Port: 1, Counters: fabric.Counters{SymbolErrors: 65535}, Saturated: []string{"SymbolErrorCounter"}},
			{LID: 3, Port: 2, Extended: &fabric.ExtendedCounters{XmitData: 1 << 40}, Saturated: []string{}, Reset: true},
		},
	} {
		b.Reset()
		require.NoError(t, l.print(program.Output{Stdout: &b}, report))
		golden.Compare(t, "testdata/"+file, b.String())
	}
}

// Each counter that a node has is shown once, with 64 bits if it has these.
func TestBestCounters(t *testing.T) {
	counters := fabric.Counters{SymbolErrors: 7, XmitData: 1<<32 - 1, XmitWait: 5}
	extended := &fabric.ExtendedCounters{SymbolErrors: 70000, XmitData: 1 << 33, UnicastRcvPackets: 3}
	const xmitWait, byKind, qp1, errors = 1 << 12, 1 << 9, 1 << 15, 1 << 1
	for _, tt := range []struct {
		can      fabric.Performance
		extended *fabric.ExtendedCounters
		want     map[string]uint64
		absent   []string
		number   int
	}{
		{fabric.Performance{}, nil, map[string]uint64{"SymbolErrorCounter": 7, "PortXmitData": 1<<32 - 1}, []string{"PortXmitWait", "QP1Dropped"}, 16},
		{fabric.Performance{Capabilities: xmitWait}, nil, map[string]uint64{"PortXmitWait": 5}, []string{"QP1Dropped"}, 17},
		{
			fabric.Performance{Capabilities: xmitWait | byKind | qp1},
			extended,
			map[string]uint64{"SymbolErrorCounter": 7, "PortXmitData": 1 << 33, "PortUnicastRcvPkts": 3},
			nil, 18 + 4,
		},
		{
			fabric.Performance{Capabilities: 1 << 10, Capabilities2: errors},
			extended,
			map[string]uint64{"SymbolErrorCounter": 70000, "PortXmitData": 1 << 33},
			[]string{"PortUnicastRcvPkts"},
			16,
		},
	} {
		got := map[string]uint64{}
		all := best(tt.can, counters, tt.extended)
		for _, c := range all {
			got[c.Name] = c.Value
		}
		require.Len(t, all, tt.number)
		require.Len(t, got, tt.number, "each once")
		for name, value := range tt.want {
			require.Equal(t, value, got[name], name)
		}
		for _, name := range tt.absent {
			require.NotContains(t, got, name)
		}
	}
}

// fakeClient is a switch with 5 ports. Its functions say which requests fail.
type fakeClient struct {
	read, reset func(port int) error
	have        map[int]bool // ports whose counters are not 0
}

func (f *fakeClient) NodeInfo(context.Context, fabric.Address) (fabric.NodeInfo, error) {
	return fabric.NodeInfo{Type: fabric.Switch, NumPorts: 5}, nil
}

func (f *fakeClient) PortInfo(context.Context, fabric.Address, int) (fabric.PortInfo, error) {
	return fabric.PortInfo{LID: 3}, nil
}

func (f *fakeClient) Performance(context.Context, fabric.LID) (fabric.Performance, error) {
	return fabric.Performance{Capabilities: 1 << 9}, nil
}

func (f *fakeClient) Counters(_ context.Context, _ fabric.LID, port int) (fabric.Counters, error) {
	return fabric.Counters{SymbolErrors: 7}, f.read(port)
}

func (f *fakeClient) ExtendedCounters(_ context.Context, _ fabric.LID, port int) (fabric.ExtendedCounters, error) {
	return fabric.ExtendedCounters{}, nil
}

func (f *fakeClient) ResetCounters(_ context.Context, _ fabric.LID, port int) error {
	delete(f.have, port)
	return nil
}

func (f *fakeClient) ResetExtendedCounters(_ context.Context, _ fabric.LID, port int) error {
	return f.reset(port)
}

// What was reset was shown, whichever request fails.
func TestResetCountersAreShown(t *testing.T) {
	fail := func(at int, err error) func(int) error {
		return func(port int) error {
			if port == at {
				return err
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name        string
		read, reset func(port int) error
		shown       []int
		reset3      bool
		err         error
	}{
		{"nothing fails", fail(0, nil), fail(0, nil), []int{1, 2, 3, 4, 5}, true, nil},
		{"no answer", fail(3, fabric.ErrNoAnswer), fail(0, nil), []int{1, 2}, false, fabric.ErrNoAnswer},
		{"no answer to the reset", fail(0, nil), fail(3, fabric.ErrNoAnswer), []int{1, 2, 3}, false, fabric.ErrNoAnswer},
		{"a port is refused", fail(3, fabric.StatusInvalidValue), fail(0, nil), []int{1, 2, 4, 5}, false, fabric.StatusInvalidValue},
		{"all are refused", func(int) error { return fabric.StatusUnsupported }, fail(0, nil), nil, false, fabric.StatusUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeClient{tt.read, tt.reset, map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true}}
			var b bytes.Buffer
			c := counters{reset: true}
			c.asJSON = true
			require.ErrorIs(t, c.show(t.Context(), program.Output{Stdout: &b}, f, fabric.Address{}, -1), tt.err)
			var reports []counterReport
			if len(tt.shown) > 0 {
				require.NoError(t, json.Unmarshal(b.Bytes(), &reports))
			}
			var shown []int
			for _, r := range reports {
				shown = append(shown, r.Port)
				require.Equal(t, r.Port != 3 || tt.reset3, r.Reset)
				delete(f.have, r.Port)
			}
			require.Equal(t, tt.shown, shown)
			require.Len(t, f.have, 5-len(shown), "the counters of others are not 0")
		})
	}
}

// blocks returns the nodes of what ibnetdiscover prints, in any order.
func blocks(text string) []string {
	all := strings.Split(strings.TrimSpace(text), "\n\n")
	slices.Sort(all)
	return slices.DeleteFunc(all, func(b string) bool { return strings.HasPrefix(b, "#\n# Topology file") })
}

// discover -l prints what ibnetdiscover does, on a fabric with all kinds of
// links, before and after a subnet manager ran.
func TestSameAsIbnetdiscover(t *testing.T) {
	ibsim.Require(t, "ibnetdiscover", "opensm")
	ibsim.Within(t, ibsim.FatTree(3, 6, 5), "Host3-3", func(t *testing.T, sim *ibsim.Fabric) {
		for range 2 {
			status, stdout, stderr := tested.Run("discover -l")
			require.Zero(t, status, stderr)
			want := sim.Run(t, "Host3-3", "ibnetdiscover")
			require.Len(t, blocks(want), 3+6+30)
			require.Equal(t, blocks(want), blocks(stdout))
			sim.AssignLIDs(t, "Host3-3")
		}
	})
}

func TestCommandsOnFabric(t *testing.T) {
	ibsim.Within(t, ibsim.Small(), "Hca1", func(t *testing.T, sim *ibsim.Fabric) {
		run := func(args string) string {
			t.Helper()
			status, stdout, stderr := tested.Run(args)
			require.Zero(t, status, "%s: %s", args, stderr)
			return stdout
		}
		status, _, stderr := tested.Run("counters")
		require.Equal(t, 1, status)
		require.Contains(t, stderr, "verbena fabric counters: 0 has no LID: no subnet manager has assigned one\n")
		sim.AssignLIDs(t, "Hca1")
		sim.Do(t, `PerformanceSet "Switch1"[7] PortCounters.LinkDownedCounter=255`, `PerformanceSet "Switch1"[7] PortCountersExtended.PortXmitData=12345678901`)

		require.Contains(t, run("node"), "Description   Hca1\n")
		require.Contains(t, run("node 0,1"), "Type          Switch\n")
		require.Contains(t, run("switch 0,1"), "LinearFDBCap            30720\n")
		require.Regexp(t, `(?m)^State +active$`, run("port 0,1 1"))
		require.Regexp(t, `(?m)^State +down$`, run("port 0,1 8"))

		var reports []counterReport
		require.NoError(t, json.Unmarshal([]byte(run("counters -j 0,1")), &reports))
		require.Len(t, reports, 8, "each port of the switch")
		require.Equal(t, []string{"LinkDownedCounter"}, reports[6].Saturated)
		lid := reports[6].LID
		text := run(fmt.Sprintf("counters -r %s 7", lid))
		require.Contains(t, text, fmt.Sprintf("LID %s port 7, now reset\n", lid))
		require.Regexp(t, `(?m)^  LinkDownedCounter +255 +saturated$`, text)
		require.Regexp(t, `(?m)^  PortXmitData +12345678901$`, text)
		text = run(fmt.Sprintf("counters %s 7", lid))
		require.Regexp(t, `(?m)^  LinkDownedCounter +0$`, text)
		require.Regexp(t, `(?m)^  PortXmitData +0$`, text)
		require.Contains(t, run("counters 0"), " port 1\n", "the local port")

		sim.Do(t, `Error "Hca2" 100`)
		status, stdout, stderr := tested.Run("discover -t 100 -n 0")
		require.Equal(t, 1, status)
		require.Contains(t, stdout, "Switch2")
		require.Contains(t, stderr, `verbena fabric discover: behind port 2 of Switch 0x`)
		require.Contains(t, stderr, "no answer (requests sent: 1, timeout 100ms)\n")
		require.Contains(t, stderr, "the discovery is incomplete: number of problems: 1\n")
	})
}
