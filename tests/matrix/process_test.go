// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// programs are ours that do not have the names of those that they are to work
// with, by these names.
var programs = map[string][]string{
	"rdma_client": {"rdmaclient"}, "rdma_server": {"rdmaserver"}, "rdma_xclient": {"rdmaxclient"}, "rdma_xserver": {"rdmaxserver"},
	"perf": {"verbena", "perf"}, "devices": {"verbena", "devices"},
}

// ourProgram returns what starts our program that is to work with the one of
// the name: the program's name, and the arguments that come first.
func ourProgram(name string) (program string, args []string) {
	if words := programs[name]; words != nil {
		return words[0], words[1:]
	}
	return name, nil
}

// side is whose program it is.
type side bool

const (
	ours   side = true
	theirs side = false
)

func (s side) String() string { return map[side]string{ours: "Go", theirs: "C"}[s] }

// onHost is a program that runs on a host.
type onHost struct {
	*process.Process
	t    testing.TB
	host host
}

// start runs a program of either side, with C's flags. It is killed if it
// outlives the test.
func (s side) start(t testing.TB, h host, name, args string) onHost {
	t.Helper()
	if h.udp != nil {
		p := onNetwork(t, h, h.udp.network(), name, strings.Fields(args)...)
		h.udp.join(p.Process)
		return p
	}
	theirProgram := append([]string{"stdbuf", "-oL", name}, strings.Fields(args)...)
	cmd := h.command(theirProgram[0], theirProgram[1:]...)
	switch {
	case s == ours:
		program, first := ourProgram(name)
		cmd = h.command(process.CmdPath(t, program), append(first, strings.Fields(args)...)...)
	case h.soft != "":
		cmd = h.command(process.CmdPath(t, "verbena"), append([]string{"softroce", "run", "-l", softLibraries}, theirProgram...)...)
	}
	if h.soft != "" {
		cmd.Env = append(os.Environ(), "VERBENA_DEVICE=soft", "VERBENA_NETWORK="+h.soft)
	}
	return onHost{process.Start(t, cmd), t, h}
}

// listens waits until an id listens on the host.
func (p onHost) listens() {
	p.t.Helper()
	p.Eventually("listens", func() bool { return p.Ended() || p.host.listening() })
}

// listening reports whether an id listens.
func (h host) listening() bool {
	if h.soft != "" {
		return slices.ContainsFunc(h.softNames(), func(name string) bool {
			return strings.HasPrefix(name, "listen/")
		})
	}
	return h.sees("state LISTEN", "rdma", "resource", "show", "cm_id")
}

// succeeds waits for the end.
func (p onHost) succeeds() {
	p.t.Helper()
	require.Zero(p.t, p.Wait())
}

// fails waits for the end.
func (p onHost) fails() {
	p.t.Helper()
	require.NotZero(p.t, p.Wait())
}
