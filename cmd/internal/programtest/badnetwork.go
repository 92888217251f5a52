// SPDX-License-Identifier: Apache-2.0

package programtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
)

// badNetwork is the argument that makes a test binary become the program.
const badNetwork = "bad network"

// BecomeOnBadNetwork runs the program in this process, on a bad network, if
// OnBadNetwork has started the process. TestMain calls it before it runs the
// tests.
func (m Main) BecomeOnBadNetwork() {
	process.Become(map[string]process.Program{badNetwork: func(args []string, stdout, stderr io.Writer) int {
		softroce.SetFaults(bad)
		return m(args, stdout, stderr)
	}})
}

// bad returns the fault for a packet. It loses, repeats, delays or corrupts one
// packet in a hundred each, but not the last message of a program, which no
// process would send again.
func bad(p softroce.Packet) (f softroce.Fault) {
	if p.Kind == softroce.KindDREQ {
		return f
	}
	f.Drop = rand.IntN(100) == 0
	f.Corrupt = rand.IntN(100) == 0
	if rand.IntN(100) == 0 {
		f.Duplicate = 1
	}
	if rand.IntN(100) == 0 {
		f.Delay = time.Duration(rand.IntN(5)) * time.Millisecond
	}
	return f
}

// Have skips the test if VERBENA_DEVICE selects the device in user space, and
// the device lacks one of these.
func Have(t *testing.T, all ...testdevice.Feature) {
	t.Helper()
	if testdevice.Soft() {
		testdevice.Require(t).Have(t, all...)
	}
}

// OnBadNetwork runs a server and a client of the program on the device in user
// space with a bad network. {S} in their arguments is the server's address.
// Both must succeed.
func OnBadNetwork(t *testing.T, serverArgs, clientArgs string) {
	t.Helper()
	start := func(address netip.Addr, args string) *process.Process {
		cmd := process.Command(t, badNetwork, strings.Fields(strings.ReplaceAll(args, "{S}", ownnetwork.Addr(1).String()))...)
		cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft:udp="+address.String())
		return process.Start(t, cmd)
	}
	server := start(ownnetwork.Addr(1), serverArgs)
	listens := fmt.Sprintf("/listen/%d/", server.Pid())
	server.Eventually("listens", func() bool {
		sockets, _ := os.ReadFile("/proc/net/unix")
		return server.Ended() || strings.Contains(string(sockets), listens)
	})
	require.Zero(t, start(ownnetwork.Addr(2), clientArgs).Wait())
	require.Zero(t, server.Wait())
}
