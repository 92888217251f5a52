// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package perf

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/agent"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

// faulty is the name of verbena agent on a device whose packets to an address
// are late or get lost.
const faulty = "agent, faulty"

// The environment variables of a faulty agent. Each has an address.
const (
	delayed = "VERBENA_TEST_DELAYED"
	lossy   = "VERBENA_TEST_LOSSY"
)

// faultyAgent is the program faulty.
func faultyAgent(args []string, stdout, stderr io.Writer) int {
	late, _ := netip.ParseAddr(os.Getenv(delayed))
	lost, _ := netip.ParseAddr(os.Getenv(lossy))
	softroce.SetFaults(func(p softroce.Packet) (f softroce.Fault) {
		if p.Destination == late {
			f.Delay = 10 * time.Millisecond
		}
		f.Drop = p.Destination == lost && rand.IntN(50) == 0
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
			env = append(env, delayed+"="+hosts[late[1]].address)
		case late[1]:
			env = append(env, delayed+"="+hosts[late[0]].address)
		case lost[0]:
			env = append(env, lossy+"="+hosts[lost[1]].address)
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
	var text strings.Builder
	r.Write(&text)
	t.Logf("\n%s", text.String())
	require.Len(t, r.Links, n*(n-1))
	var worst [][2]string // the pairs that are named, the worst first
	for _, f := range r.Findings {
		if pair := [2]string{min(f.Host, f.Peer), max(f.Host, f.Peer)}; !slices.Contains(worst, pair) {
			worst = append(worst, pair)
		}
	}
	pair := func(ends [2]int) [2]string {
		a, b := addresses[ends[0]], addresses[ends[1]]
		return [2]string{min(a, b), max(a, b)}
	}
	require.GreaterOrEqual(t, len(worst), 2)
	require.ElementsMatch(t, [][2]string{pair(late), pair(lost)}, worst[:2], "a busy machine may slow down others")
	t.Logf("%d others are named", len(worst)-2)
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
