// SPDX-License-Identifier: Apache-2.0

package cmtime

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

// program is one of the two cmtimes.
type program struct {
	name string
	stop os.Signal // which ends its server
}

var (
	ours   = program{"Go", os.Interrupt}
	theirs = program{"C", syscall.SIGKILL}
)

func (p program) start(t testing.TB, args ...string) *process.Process {
	t.Helper()
	if p == ours {
		return process.Start(t, process.Cmd(t, "cmtime", args...))
	}
	return process.Start(t, exec.Command("cmtime", args...))
}

// serve starts a server, which ends when the function is called.
func serve(t testing.TB, server program, args ...string) (stop func()) {
	t.Helper()
	serving := server.start(t, append(args, "-p", "7477")...)
	awaitIDs(t, func(ids string) bool { return strings.Contains(ids, ":7477 ") && strings.Contains(ids, "state LISTEN") })
	return func() {
		serving.Signal(server.stop)
		status := serving.Wait()
		require.True(t, server == theirs || status == 0 && serving.Output() == "", "status %d", status)
		awaitIDs(t, func(ids string) bool { return ids == "" })
	}
}

// measure returns how long all connections together took for each step of the
// client's, which it runs against a server of either program.
func measure(t testing.TB, client, server program, d testdevice.Device, connections int) map[string]time.Duration {
	t.Helper()
	defer serve(t, server)()
	c := client.start(t, "-s", d.IPv4.String(), "-p", "7477", "-c", fmt.Sprint(connections))
	require.Zero(t, c.Wait(), "%s client", client.name)
	return totals(t, c.Output())
}

var stepLine = regexp.MustCompile(`(?m)^([a-z]+ ?[a-z]+) *: +([0-9.]+) `)

// totals reads what either program prints.
func totals(t testing.TB, out string) map[string]time.Duration {
	t.Helper()
	times := map[string]time.Duration{}
	for _, m := range stepLine.FindAllStringSubmatch(out, -1) {
		ms, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		times[m[1]] = time.Duration(ms * float64(time.Millisecond))
	}
	for _, step := range steps {
		require.Contains(t, times, step, out)
	}
	return times
}

var steps = []string{"create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"}

// awaitIDs waits until what the kernel says of its ids is so.
func awaitIDs(t testing.TB, isSo func(ids string) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		out, err := exec.Command("rdma", "resource", "show", "cm_id").Output()
		return err == nil && isSo(string(out))
	}, patience, 10*time.Millisecond)
}
