// SPDX-License-Identifier: Apache-2.0

package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/fabric"
	"github.com/verbena-go/verbena/internal/testutil/ibsim"
)

// open opens the port of the simulated host.
func open(t testing.TB, config fabric.Config) *fabric.Client {
	t.Helper()
	c, err := fabric.Open(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// described returns the links of a topology by the descriptions of the nodes.
func described(topology *fabric.Topology) []string {
	var all []string
	for a, b := range topology.Links() {
		ends := []string{fmt.Sprintf("%s[%d]", a.Node.Description, a.Number), fmt.Sprintf("%s[%d]", b.Node.Description, b.Number)}
		slices.Sort(ends)
		all = append(all, strings.Join(ends, " "))
	}
	slices.Sort(all)
	return all
}

var (
	netNode = regexp.MustCompile(`^(Switch|Ca|Hca)\s+\d+ "([^"]*)"(?:\s*# "([^"]*)")?`)
	netPort = regexp.MustCompile(`^\[(\d+)\][^"]*"([^"]*)"\[(\d+)\]`)
)

// linksOf returns the links in a net as ibnetdiscover prints it, in the form of
// described.
func linksOf(t *testing.T, net string) []string {
	t.Helper()
	names := map[string]string{}
	for line := range strings.Lines(net) {
		if m := netNode.FindStringSubmatch(line); m != nil {
			names[m[2]] = m[2]
			if m[3] != "" {
				names[m[2]] = m[3]
			}
		}
	}
	all := map[string]bool{}
	node := ""
	for line := range strings.Lines(net) {
		if m := netNode.FindStringSubmatch(line); m != nil {
			node = names[m[2]]
		}
		if m := netPort.FindStringSubmatch(line); m != nil {
			require.Contains(t, names, m[2])
			ends := []string{fmt.Sprintf("%s[%s]", node, m[1]), fmt.Sprintf("%s[%s]", names[m[2]], m[3])}
			slices.Sort(ends)
			all[strings.Join(ends, " ")] = true
		}
	}
	require.NotEmpty(t, all)
	return slices.Sorted(maps.Keys(all))
}

// sameAsIbnetdiscover discovers the fabric, and compares what it finds with
// what ibnetdiscover does.
func sameAsIbnetdiscover(t *testing.T, sim *ibsim.Fabric, host string, c *fabric.Client) *fabric.Topology {
	t.Helper()
	start := time.Now()
	topology, err := c.Discover(t.Context())
	require.NoError(t, err)
	took := time.Since(start)
	start = time.Now()
	want := linksOf(t, sim.Run(t, host, "ibnetdiscover"))
	require.Equal(t, want, described(topology))
	t.Logf("%d nodes, %d links: %v, ibnetdiscover %v", len(topology.Nodes), len(want), took, time.Since(start))
	return topology
}

func TestDiscoverSmall(t *testing.T) {
	ibsim.Within(t, ibsim.Small(), "Hca1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{})
		topology := sameAsIbnetdiscover(t, sim, "Hca1", c)
		require.Empty(t, topology.Problems)
		require.Equal(t, linksOf(t, ibsim.Small()), described(topology))
		require.Equal(t, "Hca1", topology.Nodes[0].Description)
		require.Equal(t, fabric.LID(0), topology.Nodes[0].BaseLID())
		sim.AssignLIDs(t, "Hca1")
		topology = sameAsIbnetdiscover(t, sim, "Hca1", c)
		for _, n := range topology.Nodes {
			require.True(t, n.BaseLID().IsUnicast())
		}
	})
}

// A fabric of 54 switches and 648 hosts, from a host in the middle.
func TestDiscoverFatTree(t *testing.T) {
	net := ibsim.FatTree(18, 36, 18)
	ibsim.Within(t, net, "Host18-9", func(t *testing.T, sim *ibsim.Fabric) {
		topology := sameAsIbnetdiscover(t, sim, "Host18-9", open(t, fabric.Config{}))
		require.Empty(t, topology.Problems)
		require.Len(t, topology.Nodes, 18+36+36*18)
		require.Equal(t, linksOf(t, net), described(topology))
	})
}

func TestDiscoverChainOfSwitches(t *testing.T) {
	ibsim.Within(t, ibsim.Chain(70), "Host", func(t *testing.T, sim *ibsim.Fabric) {
		topology, err := open(t, fabric.Config{}).Discover(t.Context())
		require.NoError(t, err)
		require.Len(t, topology.Nodes, fabric.MaxHops+1)
		require.Len(t, topology.Problems, 1)
		require.ErrorContains(t, topology.Problems[0], "more than 63 hops")
	})
}

func TestDiscoverRingOfSwitches(t *testing.T) {
	ibsim.Within(t, ibsim.Ring(20), "Host", func(t *testing.T, sim *ibsim.Fabric) {
		topology := sameAsIbnetdiscover(t, sim, "Host", open(t, fabric.Config{}))
		require.Empty(t, topology.Problems)
		require.Equal(t, linksOf(t, ibsim.Ring(20)), described(topology))
	})
}

// From the switch itself, which has no LID and no host.
func TestDiscoverFromASwitch(t *testing.T) {
	ibsim.Within(t, ibsim.Small(), "Switch2", func(t *testing.T, sim *ibsim.Fabric) {
		topology := sameAsIbnetdiscover(t, sim, "Switch2", open(t, fabric.Config{}))
		require.Empty(t, topology.Problems)
		require.Equal(t, "Switch2", topology.Nodes[0].Description)
	})
}

// Links that break, and a node that does not answer.
func TestDiscoverBroken(t *testing.T) {
	net := ibsim.FatTree(2, 4, 3)
	ibsim.Within(t, net, "Host1-1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{Timeout: 500 * time.Millisecond, Retries: 9})
		sim.Do(t, `Unlink "Leaf2"[1]`, `Unlink "Spine1"`)
		topology := sameAsIbnetdiscover(t, sim, "Host1-1", c)
		require.Empty(t, topology.Problems)
		require.Len(t, topology.Nodes, 2+4+12-2, "a host and a spine are not linked")

		// All that a leaf and a host are sent gets lost.
		sim.Do(t, `Relink "Leaf2"`, `Relink "Spine1"`, `Error "Leaf3" 100`, `Error "Host2-2" 100`)
		topology, err := c.Discover(t.Context())
		require.NoError(t, err)
		require.Len(t, topology.Nodes, 2+4+12-1-3-1)
		require.Len(t, topology.Problems, 3, "the leaf is behind both spines")
		var texts []string
		for _, p := range topology.Problems {
			require.ErrorIs(t, p, fabric.ErrNoAnswer)
			texts = append(texts, fmt.Sprintf("%s %d", p.Node.Description, p.Port))
			route, ok := p.Err.Address.Route()
			require.True(t, ok)
			require.Equal(t, p.Port, route.Ports()[route.Hops()-1])
		}
		require.Equal(t, []string{"Leaf2 2", "Spine1 3", "Spine2 3"}, slices.Sorted(slices.Values(texts)))
	})
}

// At each node on its way, a tenth of the datagrams gets lost: they are sent
// again.
func TestDiscoverLossy(t *testing.T) {
	net := ibsim.FatTree(2, 3, 3)
	ibsim.Within(t, net, "Host1-1", func(t *testing.T, sim *ibsim.Fabric) {
		for _, node := range []string{"Leaf1", "Leaf2", "Leaf3", "Spine1", "Spine2", "Host2-1", "Host3-3"} {
			sim.Do(t, fmt.Sprintf(`Error %q 10`, node))
		}
		topology, err := open(t, fabric.Config{Retries: 50}).Discover(t.Context())
		require.NoError(t, err)
		require.Empty(t, topology.Problems)
		require.Equal(t, linksOf(t, net), described(topology))
	})
}

// Links go down and up again while the fabric is discovered: that ends, and
// what stays is found.
func TestDiscoverWhileLinksFlap(t *testing.T) {
	ibsim.Within(t, ibsim.FatTree(4, 8, 4), "Host1-1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{Retries: -1})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 60 {
				leaf := i%7 + 2
				sim.Do(t, fmt.Sprintf(`Unlink "Leaf%d"`, leaf), fmt.Sprintf(`Relink "Leaf%d"`, leaf))
			}
		}()
		for flapping := true; flapping; {
			select {
			case <-done:
				flapping = false
			default:
			}
			topology, err := c.Discover(t.Context())
			if errors.Is(err, fabric.ErrNoAnswer) { // of the local node, which a busy machine gives no time
				continue
			}
			require.NoError(t, err)
			require.NotNil(t, topology.Nodes[0])
		}
		topology := sameAsIbnetdiscover(t, sim, "Host1-1", open(t, fabric.Config{}))
		require.Len(t, topology.Nodes, 4+8+32)
	})
}

// The end of the simulator in the middle of a discovery is an error of the
// local port.
func TestSimulatorIsKilled(t *testing.T) {
	ibsim.Within(t, ibsim.FatTree(8, 16, 8), "Host1-1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{Timeout: 100 * time.Millisecond, Retries: -1})
		require.Eventually(t, func() bool { // a busy machine may not answer in time
			_, err := c.NodeInfo(t.Context(), fabric.Address{})
			return err == nil
		}, time.Minute, time.Millisecond)
		discovered := make(chan error)
		go func() {
			_, err := c.Discover(t.Context())
			discovered <- err
		}()
		sim.Kill()
		select {
		case err := <-discovered:
			t.Log(err)
		case <-time.After(time.Minute):
			t.Fatal("the discovery did not end with the simulator")
		}
		_, err := c.NodeInfo(t.Context(), fabric.Address{})
		require.Error(t, err)
	})
}

func TestCancelledBehindIbsim(t *testing.T) {
	ibsim.Within(t, ibsim.FatTree(8, 16, 8), "Host1-1", func(t *testing.T, _ *ibsim.Fabric) {
		c := open(t, fabric.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		topology, err := c.Discover(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_ = topology // may have been found in part
		_, err = c.NodeInfo(t.Context(), fabric.Address{})
		require.NoError(t, err, "the port is as before")
	})
}

// queried parses what smpquery and perfquery print: names, dots and values.
func queried(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && strings.HasPrefix(value, "...") {
			all[name] = strings.TrimLeft(value, ".")
		}
	}
	return all
}

// asNumbers turns the values that are numbers into decimal ones.
func asNumbers(values map[string]string) map[string]string {
	for name, value := range values {
		if n, err := strconv.ParseUint(value, 0, 64); err == nil {
			values[name] = strconv.FormatUint(n, 10)
		}
	}
	return values
}

func TestQueriesAgainstSmpquery(t *testing.T) {
	ibsim.Within(t, ibsim.Small(), "Hca1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{})
		sim.AssignLIDs(t, "Hca1")
		topology, err := c.Discover(t.Context())
		require.NoError(t, err)
		require.Len(t, topology.Nodes, 4)
		smpquery := func(args ...string) map[string]string {
			return asNumbers(queried(sim.Run(t, "Hca1", "smpquery", args...)))
		}
		for _, n := range topology.Nodes[:2] { // ibsim takes so many programs
			for _, address := range []fabric.Address{fabric.AtRoute(n.Route), fabric.AtLID(n.BaseLID())} {
				args := []string{"-L"}
				if _, ok := address.Route(); ok {
					args = []string{"-D"}
				}
				info, err := c.NodeInfo(t.Context(), address)
				require.NoError(t, err)
				want := smpquery(append(args, "nodeinfo", address.String())...)
				for name, got := range map[string]any{
					"BaseVers": info.BaseVersion, "ClassVers": info.ClassVersion, "NodeType": info.Type, "NumPorts": info.NumPorts,
					"SystemGuid": uint64(info.SystemGUID), "Guid": uint64(info.GUID), "PortGuid": uint64(info.PortGUID), "PartCap": info.PartitionCap,
					"DevId": info.DeviceID, "Revision": info.Revision, "LocalPort": info.LocalPort, "VendorId": info.VendorID,
				} {
					require.Equal(t, want[name], fmt.Sprint(got), name)
				}
				require.Len(t, want, 12)
				port, err := c.PortInfo(t.Context(), address, 1)
				require.NoError(t, err)
				want = smpquery(append(args, "portinfo", address.String(), "1")...)
				for name, got := range map[string]any{
					"Lid": port.LID, "SMLid": port.SMLID, "LMC": port.LMC, "LocalPort": port.LocalPort, "LinkState": "Active",
					"PhysLinkState": port.PhysState, "LinkWidthActive": port.Width, "NeighborMTU": port.NeighborMTU, "MtuCap": port.MTUCap,
					"VLHighLimit": port.VLHighLimit, "VLArbHighCap": port.VLArbitrationHighCap, "VLArbLowCap": port.VLArbitrationLowCap,
					"VLStallCount": port.VLStallCount, "HoqLife": port.HOQLife, "MkeyViolations": port.MKeyViolations, "SubnetTimeout": port.SubnetTimeout,
					"GuidCap": port.GUIDCap, "LinkWidthEnabled": port.WidthEnabled, "ProtectBits": port.MKeyProtect, "SMSL": port.SMSL,
				} {
					require.Equal(t, want[name], fmt.Sprint(got), "%s: %s", address, name)
				}
			}
		}
	})
}

func TestSwitchInfoAgainstSmpquery(t *testing.T) {
	ibsim.Within(t, ibsim.Small(), "Hca1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{})
		address, err := fabric.ParseAddress("0,1,3")
		require.NoError(t, err)
		info, err := c.SwitchInfo(t.Context(), address)
		require.NoError(t, err)
		want := asNumbers(queried(sim.Run(t, "Hca1", "smpquery", "-D", "switchinfo", address.String())))
		flag := map[bool]int{true: 1}
		for name, got := range map[string]any{
			"LinearFdbCap": info.LinearFDBCap, "RandomFdbCap": info.RandomFDBCap, "McastFdbCap": info.MulticastFDBCap, "LinearFdbTop": info.LinearFDBTop,
			"DefPort": info.DefaultPort, "DefMcastPrimPort": info.DefaultMulticastPort, "DefMcastNotPrimPort": info.DefaultMulticastOther,
			"LifeTime": info.LifeTime, "StateChange": flag[info.PortStateChange], "LidsPerPort": info.LIDsPerPort,
			"PartEnforceCap": info.PartitionEnforcement, "InboundPartEnf": flag[info.InboundEnforcement], "OutboundPartEnf": flag[info.OutboundEnforcement],
			"FilterRawInbound": flag[info.FilterRawInbound], "FilterRawOutbound": flag[info.FilterRawOutbound], "EnhancedPort0": flag[info.EnhancedPort0],
		} {
			require.Equal(t, want[name], fmt.Sprint(got), name)
		}
		_, err = c.SwitchInfo(t.Context(), fabric.Address{})
		require.ErrorIs(t, err, fabric.StatusUnsupported)
		_, err = c.PortInfo(t.Context(), address, 9)
		require.ErrorIs(t, err, fabric.StatusInvalidValue)
	})
}

// counterValues returns counters by their names.
func counterValues(counters []fabric.Counter) map[string]string {
	all := map[string]string{}
	for _, c := range counters {
		all[c.Name] = strconv.FormatUint(c.Value, 10)
	}
	return all
}

func TestCountersAgainstPerfquery(t *testing.T) {
	ibsim.Within(t, ibsim.Small(), "Hca1", func(t *testing.T, sim *ibsim.Fabric) {
		c := open(t, fabric.Config{})
		sim.AssignLIDs(t, "Hca1")
		address, err := fabric.ParseAddress("0,1")
		require.NoError(t, err)
		port, err := c.PortInfo(t.Context(), address, 0)
		require.NoError(t, err)
		lid := port.LID
		for i, field := range []string{
			"SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors", "PortRcvRemotePhysicalErrors",
			"PortRcvSwitchRelayErrors", "PortXmitDiscards", "PortXmitConstraintErrors", "PortRcvConstraintErrors", "VL15Dropped",
		} {
			sim.Do(t, fmt.Sprintf(`PerformanceSet "Switch1"[7] PortCounters.%s=%d`, field, 100+i))
		}
		sim.Do(t, `PerformanceSet "Switch1"[7] PortCounters.LocalLinkIntegrityErrors=15`, `PerformanceSet "Switch1"[7] PortCounters.PortXmitData=4294967295`,
			`PerformanceSet "Switch1"[7] PortCountersExtended.PortXmitData=18446744073709551614`)
		can, err := c.Performance(t.Context(), lid)
		require.NoError(t, err)
		require.True(t, can.AllPorts() && can.Extended() && can.XmitWait())

		const number = 7
		counters, err := c.Counters(t.Context(), lid, number)
		require.NoError(t, err)
		want := queried(sim.Run(t, "Hca1", "perfquery", lid.String(), strconv.Itoa(number)))
		for name, got := range counterValues(counters.All()) {
			if name != "QP1Dropped" { // ibsim has none
				require.Equal(t, want[name], got, name)
			}
		}
		require.EqualValues(t, 103, counters.RcvErrors)
		extended, err := c.ExtendedCounters(t.Context(), lid, number)
		require.NoError(t, err)
		want = queried(sim.Run(t, "Hca1", "perfquery", "-x", lid.String(), strconv.Itoa(number)))
		for _, counter := range extended.All()[:8] {
			require.Equal(t, want[counter.Name], strconv.FormatUint(counter.Value, 10), counter.Name)
		}
		require.EqualValues(t, uint64(18446744073709551614), extended.XmitData)
		for _, counter := range counters.All() {
			require.Equal(t, counter.Name == "PortXmitData" || counter.Name == "LocalLinkIntegrityErrors", counter.Saturated(), counter.Name)
		}

		sum, err := c.Counters(t.Context(), lid, fabric.AllPorts)
		require.NoError(t, err)
		require.EqualValues(t, 103, sum.RcvErrors)

		require.NoError(t, c.ResetCounters(t.Context(), lid, number))
		counters, err = c.Counters(t.Context(), lid, number)
		require.NoError(t, err)
		require.Zero(t, counters)
		require.NoError(t, c.ResetExtendedCounters(t.Context(), lid, number))
		extended, err = c.ExtendedCounters(t.Context(), lid, number)
		require.NoError(t, err)
		require.Zero(t, extended.XmitData)

		_, err = c.Counters(t.Context(), lid, 9)
		require.ErrorIs(t, err, fabric.StatusInvalidValue)
		_, err = c.Counters(t.Context(), 99, 1)
		require.ErrorIs(t, err, fabric.ErrNoAnswer)
	})
}
