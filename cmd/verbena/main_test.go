// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(commands)

// leaves are all commands that are programs.
var leaves = []string{
	"doctor", "devices", "selftest", "ping", "perf", "agent", "watch", "stat", "softroce run", "softroce libs", "softroce stat",
	"fabric discover", "fabric counters", "fabric node", "fabric port", "fabric switch", "completion", "man",
}

// Every command has -h, is known to help, calls itself by its own name, and
// refuses a wrong flag with status 2.
func TestCommands(t *testing.T) {
	for _, name := range leaves {
		status, help, stderr := tested.Run(name + " -h")
		require.Zero(t, status, name)
		require.Empty(t, stderr, name)
		require.Contains(t, help, "verbena "+name, name)
		require.Contains(t, help, "xample", name)
		status, stdout, _ := tested.Run("help " + name)
		require.Zero(t, status, name)
		require.Equal(t, help, stdout, name)
		status, stdout, stderr = tested.Run(name + " --no-such-flag")
		require.Equal(t, 2, status, name)
		require.Empty(t, stdout, name)
		require.Regexp(t, "^verbena "+name+": unknown flag: --no-such-flag; -h lists the flags\n$", stderr)
	}
}

func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":             "verbena COMMAND [flags] [arguments]\n",
		"docter":       "verbena: unknown command \"docter\"; did you mean \"doctor\"?; verbena -h lists the commands\n",
		"softroce fly": "verbena softroce: unknown command \"fly\"; verbena softroce -h lists the commands\n",
		"help fly":     "verbena: unknown command \"fly\"; verbena -h lists the commands\n",
		"ping":         "verbena ping: the host is missing; with -l this is the server; -h lists the flags\n",
	} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 2, status, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
	}
}

func TestVersion(t *testing.T) {
	status, stdout, stderr := tested.Run("--version")
	require.Zero(t, status)
	require.Empty(t, stderr)
	require.Regexp(t, "^verbena .*\n"+runtime.Version()+" .*\n.*\n$", stdout)

	here := "\n" + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	for _, tt := range []struct {
		info debug.BuildInfo
		want string
	}{
		{debug.BuildInfo{}, "verbena of a checkout" + here},
		{debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "verbena v1.2.3" + here},
		{
			debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
				setting("vcs.revision", "0123456789abcdef"), setting("vcs.modified", "true"), setting("vcs.time", "2026-01-02T03:04:05Z"),
			}},
			"verbena of a checkout, revision 0123456789ab with changes of 2026-01-02T03:04:05" + here,
		},
		{
			debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{setting("CGO_ENABLED", "0")}},
			"verbena v1.2.3" + here + ", without cgo: it cannot use RDMA",
		},
	} {
		require.Equal(t, tt.want, program.Describe("verbena", &tt.info))
	}
}
