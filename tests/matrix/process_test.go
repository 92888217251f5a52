// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/cmtime"
	"github.com/verbena-go/verbena/internal/cmd/mckey"
	"github.com/verbena-go/verbena/internal/cmd/rcopy"
	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmadevices"
	"github.com/verbena-go/verbena/internal/cmd/rdmaperf"
	"github.com/verbena-go/verbena/internal/cmd/rdmaserver"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxserver"
	"github.com/verbena-go/verbena/internal/cmd/rping"
	"github.com/verbena-go/verbena/internal/cmd/rstream"
	"github.com/verbena-go/verbena/internal/cmd/softroce"
	"github.com/verbena-go/verbena/internal/cmd/ucmatose"
	"github.com/verbena-go/verbena/internal/cmd/udaddy"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// programs are ours, by the names of those that they are to work with.
var programs = map[string]process.Program{
	"cmtime": cmtime.Main, "mckey": mckey.Main, "rping": rping.Main, "ucmatose": ucmatose.Main, "udaddy": udaddy.Main,
	"rdma_client": rdmaclient.Main, "rdma_server": rdmaserver.Main,
	"rdma_xclient": rdmaxclient.Main, "rdma_xserver": rdmaxserver.Main, "rdmaperf": rdmaperf.Main, "rdmadevices": rdmadevices.Main,
	"softroce": softroce.Main,
	"rcopy":    rcopy.Main, "rstream": rstream.Main,
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
	theirProgram := append([]string{"stdbuf", "-oL", name}, strings.Fields(args)...)
	cmd := h.command(theirProgram[0], theirProgram[1:]...)
	switch {
	case h.udp != nil:
		cmd = h.command(publicSelf, strings.Fields(args)...)
		cmd.Env = append(process.Env(name), "VERBENA_DEVICE=soft:"+h.udp.network(), "VERBENA_NETWORK="+h.soft)
		p := onHost{process.Start(t, cmd), t, h}
		h.udp.join(p.Process)
		return p
	case s == ours:
		cmd = h.command(process.Self(t), strings.Fields(args)...)
		cmd.Env = process.Env(name)
	case h.soft != "":
		cmd = h.command(process.Self(t), append([]string{"run", "-l", softLibraries}, theirProgram...)...)
		cmd.Env = process.Env("softroce")
	}
	if h.soft != "" {
		cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_NETWORK="+h.soft)
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
			return strings.HasPrefix(name, "name/") || strings.HasPrefix(name, "udp/")
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
