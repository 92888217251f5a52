// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// The commands of the jobs do their work on the device in user space, where all
// pods have one address.
func TestJobsRun(t *testing.T) {
	path := process.CmdPath(t, "verbena")
	c, err := readFiles(t).build()
	require.NoError(t, err)
	start := func(network, job string) *process.Process {
		i := slices.IndexFunc(c.pods, func(p pod) bool { return p.name == job })
		require.GreaterOrEqual(t, i, 0, job)
		args := slices.Clone(c.pods[i].spec.Containers[0].Command[1:])
		for i, arg := range args {
			if strings.HasPrefix(arg, "192.0.2.") {
				args[i] = "127.0.0.1"
			}
		}
		cmd := exec.Command(path, args...)
		cmd.Env = append(os.Environ(), "VERBENA_DEVICE=soft", fmt.Sprint("VERBENA_NETWORK=", network, os.Getpid()))
		return process.Start(t, cmd)
	}
	// The checks of one device mostly wait, so those of two run beside them.
	selftest := start("alone", "verbena-selftest")
	client := start("kubernetes", "verbena-selftest-client")
	client.Says("waiting for the server")
	server := start("kubernetes", "verbena-selftest-server")
	require.Zero(t, client.Wait(), client.Output())
	require.Zero(t, server.Wait(), server.Output())
	require.Zero(t, selftest.Wait(), selftest.Output())
}
