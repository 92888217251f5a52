package perf

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/rdmaperf"
	"github.com/verbena-go/verbena/internal/cmd/rdmaperf/perf"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

// selfEnv makes this program be rdmaperf.
const selfEnv = "VERBENA_TEST_RDMAPERF"

func TestMain(m *testing.M) {
	if os.Getenv(selfEnv) != "" {
		os.Exit(rdmaperf.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// measurement is what both programs can do.
type measurement struct {
	op        string // as rdmaperf has it
	bandwidth bool
}

func (m measurement) String() string {
	return m.op + map[bool]string{false: " latency", true: " bandwidth"}[m.bandwidth]
}

// program returns how one of the two programs is started for a measurement.
type program struct {
	name    string
	command func(m measurement) []string
}

var theirs = program{"C", func(m measurement) []string {
	kind := map[bool]string{false: "lat", true: "bw"}[m.bandwidth]
	switch m.op {
	case "fetchadd":
		return []string{"ib_atomic_" + kind, "-A", "FETCH_AND_ADD"}
	case "cmpswap":
		return []string{"ib_atomic_" + kind, "-A", "CMP_AND_SWAP"}
	}
	return []string{"ib_" + m.op + "_" + kind}
}}

var ours = program{"Go", func(m measurement) []string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	command := []string{self, "-o", m.op}
	if m.bandwidth {
		command = append(command, "-b")
	}
	return command
}}

// port is that of the next run, so that no two meet.
var port = 18600

// process is a program that was started. It ends with the test, or when the
// test's patience does.
type process struct {
	program program
	cmd     *exec.Cmd
	out     bytes.Buffer
	ended   chan struct{}
}

func start(t testing.TB, p program, m measurement, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	command := append(p.command(m), args...)
	s := &process{program: p, cmd: exec.CommandContext(ctx, command[0], command[1:]...), ended: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), selfEnv+"=1")
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	require.NoError(t, s.cmd.Start())
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
	}()
	return s
}

func (s *process) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// wait returns the exit status, -1 after a signal.
func (s *process) wait(t testing.TB) int {
	t.Helper()
	<-s.ended
	return s.cmd.ProcessState.ExitCode()
}

// run runs a server and a client to their ends and returns the client's rows.
func run(t testing.TB, d testdevice.Device, client, server program, m measurement, args ...string) []perf.Row {
	t.Helper()
	port++
	args = append(args, "-p", strconv.Itoa(port))
	serving := start(t, server, m, args...)
	require.Eventually(t, func() bool { return listens(port) }, patience, 5*time.Millisecond)
	asking := start(t, client, m, append(args, d.IPv4.String())...)
	require.Zero(t, asking.wait(t), "%s client\n%s", client.name, &asking.out)
	require.Zero(t, serving.wait(t), "%s server\n%s", server.name, &serving.out)
	rows := parse(t, m, asking.out.String())
	require.NotEmpty(t, rows, "%s client\n%s", client.name, &asking.out)
	return rows
}

// listens says whether anything listens on the port, without connecting to it:
// perftest takes the first who comes.
func listens(port int) bool {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(b), fmt.Sprintf(":%04X 00000000", port)) {
			return true
		}
	}
	return false
}

// parse returns the rows that either program has printed.
func parse(t testing.TB, m measurement, out string) (rows []perf.Row) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v []float64
		for _, field := range strings.Fields(line) {
			f, err := strconv.ParseFloat(field, 64)
			if err != nil {
				v = nil
				break
			}
			v = append(v, f)
		}
		switch {
		case m.bandwidth && len(v) >= 5:
			rows = append(rows, perf.Row{Bytes: int(v[0]), Iterations: int(v[1]), Peak: v[2], Average: v[3], MessageRate: v[4]})
		case !m.bandwidth && len(v) >= 9:
			rows = append(rows, perf.Row{Bytes: int(v[0]), Iterations: int(v[1]), Min: v[2], Max: v[3], Typical: v[4], Mean: v[5], P99: v[7], P999: v[8]})
		}
	}
	return rows
}

// tick is how long to wait before looking again.
const tick = 20 * time.Millisecond

// connected says whether both ends of a connection are connected and in use.
func connected(t testing.TB) bool {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", "qp").Output()
	require.NoError(t, err)
	return strings.Count(string(out), "type RC state RTS") >= 2
}
