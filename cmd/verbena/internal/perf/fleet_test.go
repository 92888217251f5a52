// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package perf

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/agent"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
)

// faulty is the name of verbena agent on a device whose packets to an address
// are late or get lost.
const faulty = "agent, faulty"

// The environment variables of a faulty agent. Each has an address, to which
// packets are late or get lost.
const (
	delayed = "VERBENA_TEST_DELAYED"
	by      = "VERBENA_TEST_DELAY" // how late, such as 10ms
	others  = "VERBENA_TEST_OTHER" // how late all others are
	lossy   = "VERBENA_TEST_LOSSY"
	loses   = "VERBENA_TEST_LOSES" // one of how many is lost; what is repeated is not
)

// faultyAgent is the program faulty.
func faultyAgent(args []string, stdout, stderr io.Writer) int {
	late, _ := netip.ParseAddr(os.Getenv(delayed))
	lost, _ := netip.ParseAddr(os.Getenv(lossy))
	delay, _ := time.ParseDuration(os.Getenv(by))
	other, _ := time.ParseDuration(os.Getenv(others))
	one, _ := strconv.Atoi(os.Getenv(loses))
	sent, mu := map[softroce.Packet]bool{}, sync.Mutex{}
	softroce.SetFaults(func(p softroce.Packet) (f softroce.Fault) {
		if f.Delay = other; p.Destination == late {
			f.Delay = delay
		}
		mu.Lock()
		defer mu.Unlock()
		if p.Destination == lost && !sent[p] {
			sent[p] = true
			f.Drop = len(sent)%one == 0
		}
		return f
	})
	return programtest.Of(agent.Program)(args, stdout, stderr)
}

// TestFleet has an agent in each of 16 network namespaces on the device in user
// space over UDP, with one delayed and one lossy link, which must be found. It
// is a measurement, so make test does not run it. VERBENA_FLEET names a folder
// for what the mesh prints and draws.
func TestFleet(t *testing.T) {
	folder := os.Getenv("VERBENA_FLEET")
	if folder == "" {
		t.Skip("a measurement: VERBENA_FLEET=FOLDER go test -run TestFleet, as root, runs it")
	}
	const n = 16
	hosts := namespaces(t, n)
	late, lost := [2]int{3, 11}, [2]int{6, 13}
	for i, h := range hosts {
		env := []string{} // all have a function for faults, which takes time
		switch i {
		case late[0]:
			env = append(env, delayed+"="+hosts[late[1]].address, by+"=10ms")
		case late[1]:
			env = append(env, delayed+"="+hosts[late[0]].address, by+"=10ms")
		case lost[0]:
			env = append(env, lossy+"="+hosts[lost[1]].address, loses+"=50")
		}
		h.start(t, faulty, env, "-c", "1")
	}
	var addresses []string
	for _, h := range hosts {
		addresses = append(addresses, h.address)
	}
	args := append(strings.Fields(os.Getenv("VERBENA_FLEET_FLAGS")), "-e", "--mesh", strings.Join(addresses, ","))
	start := time.Now()
	p := hosts[0].start(t, "perf", nil, append(args, "--plot", filepath.Join(folder, "fleet.svg"), "-j")...)
	require.Zero(t, p.Wait(), p.Output())
	t.Logf("the mesh took %v", time.Since(start))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "fleet.json"), []byte(p.Stdout()), 0o600))
	r := decode(t, p)
	require.Len(t, r.Links, n*(n-1))
	worst := named(t, &r)
	pair := func(ends [2]int) [2]string { return pairOf(addresses[ends[0]], addresses[ends[1]]) }
	require.GreaterOrEqual(t, len(worst), 2)
	require.ElementsMatch(t, [][2]string{pair(late), pair(lost)}, worst[:2], "a busy machine may slow down others")
	t.Logf("%d others are named", len(worst)-2)
}

// pairOf names a pair of hosts.
func pairOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// named returns the pairs that are named, the worst first.
func named(t *testing.T, r *mesh.Result) (worst [][2]string) {
	t.Helper()
	var text strings.Builder
	r.Write(&text)
	t.Logf("\n%s", text.String())
	for _, f := range r.Findings {
		if pair := pairOf(f.Host, f.Peer); !slices.Contains(worst, pair) {
			worst = append(worst, pair)
		}
	}
	return worst
}

// TestFaultyLink is TestFleet in small, for every machine: four agents on
// addresses of this host, with a link that is so late or lossy that it is
// named, whatever else the machine does: all links take 20 ms, beside which
// what a busy machine adds is little. That others are named, too, is possible.
func TestFaultyLink(t *testing.T) {
	testdevice.Require(t)
	const n = 4
	var addresses, hosts []string
	for i := range byte(n) {
		addresses = append(addresses, ownnetwork.Addr(i).String())
		hosts = append(hosts, fmt.Sprintf("%s:%d", addresses[i], mesh.DefaultPort))
	}
	start := func(program, address string, env []string, args ...string) *process.Process {
		cmd := process.Command(t, program, args...)
		cmd.Env = append(append(cmd.Env, "VERBENA_DEVICE=soft:udp="+address, "VERBENA_LIMITS=", "VERBENA_TOKEN=0123456789abcdef"), env...)
		return process.Start(t, cmd)
	}
	for name, envs := range map[string][n][]string{
		"late":  {{delayed + "=" + addresses[1], by + "=160ms"}, {delayed + "=" + addresses[0], by + "=160ms"}},
		"lossy": {{lossy + "=" + addresses[1], loses + "=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var agents []*process.Process
			for i, env := range envs {
				agents = append(agents, start(faulty, addresses[i], append(env, others+"=20ms"), "-c", "1", addresses[i]))
			}
			p := start("perf", addresses[0], nil, "-e", "-n", "5", "-s", "2", "-u", "15", "-W", "120", "--mesh", strings.Join(hosts, ","), "-j")
			require.Zero(t, p.Wait(), p.Output())
			r := decode(t, p)
			require.Len(t, r.Links, n*(n-1))
			pairs := named(t, &r)
			require.True(t, slices.ContainsFunc(pairs, func(pair [2]string) bool {
				// A port is named for all its links if others of them are slow, too.
				return slices.Contains([][2]string{pairOf(hosts[0], hosts[1]), pairOf(hosts[0], ""), pairOf(hosts[1], "")}, pair)
			}), "%v", pairs)
			for _, a := range agents { // which give their addresses back
				require.Zero(t, a.Wait(), a.Output())
			}
		})
	}
}

// namespace is a network namespace with an address.
type namespace struct{ name, address string }

// namespaces makes network namespaces that a bridge connects.
func namespaces(t *testing.T, n int) (all []namespace) {
	t.Helper()
	ip := func(line string) {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", line, out)
	}
	add := func(name string) {
		ip("netns add " + name)
		t.Cleanup(func() { ip("netns del " + name) })
	}
	bridge := fmt.Sprintf("fleet%d", os.Getpid())
	add(bridge)
	ip("-n " + bridge + " link add bridge type bridge")
	ip("-n " + bridge + " link set bridge up")
	for i := range n {
		h := namespace{fmt.Sprintf("%s-%d", bridge, i+1), fmt.Sprintf("198.18.0.%d", i+1)}
		add(h.name)
		ip(fmt.Sprintf("link add eth0 netns %s type veth peer name port%d netns %s", h.name, i, bridge))
		ip("-n " + h.name + " link set lo up")
		ip("-n " + h.name + " address add " + h.address + "/24 dev eth0")
		ip("-n " + h.name + " link set eth0 up")
		ip(fmt.Sprintf("-n %s link set port%d master bridge up", bridge, i))
		all = append(all, h)
	}
	return all
}

// start starts a program of the test binary in the namespace.
func (h namespace) start(t *testing.T, program string, env []string, args ...string) *process.Process {
	t.Helper()
	cmd := process.Command(t, program, args...)
	inside := exec.Command("ip", append([]string{"netns", "exec", h.name, cmd.Path}, args...)...)
	inside.Env = append(append(cmd.Env, "VERBENA_DEVICE=soft:udp", "VERBENA_TOKEN=0123456789abcdef"), env...)
	return process.Start(t, inside)
}
