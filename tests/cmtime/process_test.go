package cmtime

import (
	"bytes"
	"context"
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

	"github.com/verbena-go/verbena/internal/cmd/cmtime"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

// selfEnv makes this program be cmtime.
const selfEnv = "VERBENA_TEST_CMTIME"

func TestMain(m *testing.M) {
	if os.Getenv(selfEnv) != "" {
		os.Exit(cmtime.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// program is one of the two cmtimes.
type program struct {
	name, path string
	stop       os.Signal // which ends its server
}

func programs(t testing.TB) (ours, theirs program) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c, err := exec.LookPath("cmtime")
	require.NoError(t, err)
	return program{"Go", self, os.Interrupt}, program{"C", c, syscall.SIGKILL}
}

func (p program) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = append(os.Environ(), selfEnv+"=1")
	return cmd
}

// serve starts a server, which ends when the function is called.
func serve(t testing.TB, server program, args ...string) (stop func()) {
	t.Helper()
	var said bytes.Buffer
	serving := server.command(t.Context(), append(args, "-p", "7477")...)
	serving.Stdout, serving.Stderr = &said, &said
	require.NoError(t, serving.Start())
	awaitIDs(t, func(ids string) bool { return strings.Contains(ids, ":7477 ") && strings.Contains(ids, "state LISTEN") })
	return func() {
		require.NoError(t, serving.Process.Signal(server.stop))
		err := serving.Wait()
		require.True(t, server.stop != os.Interrupt || err == nil && said.Len() == 0, "%v\n%s", err, &said)
		awaitIDs(t, func(ids string) bool { return ids == "" })
	}
}

// measure returns how long all connections together took for each step of the
// client's, which it runs against a server of either program.
func measure(t testing.TB, client, server program, d testdevice.Device, connections int) map[string]time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer serve(t, server)()
	out, err := client.command(ctx, "-s", d.IPv4.String(), "-p", "7477", "-c", fmt.Sprint(connections)).CombinedOutput()
	require.NoError(t, err, "%s client\n%s", client.name, out)
	return totals(t, string(out))
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
