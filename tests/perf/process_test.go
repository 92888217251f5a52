// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{
		"tcp": tcp, "tcpclient": tcpClient, "connects": connects, "clients": clients, "clientserver": clientServer,
		"memoryserver": memoryServer, "mover": mover, "talks": talks, "answers": answers,
	})
	m.Run()
}

// measurement is what both programs can do.
type measurement struct {
	op        string // as verbena perf has it
	bandwidth bool
}

func (m measurement) String() string {
	return m.op + map[bool]string{false: " latency", true: " bandwidth"}[m.bandwidth]
}

// program makes the command of one of the two programs for a measurement.
type program struct {
	name    string
	command func(t testing.TB, m measurement, args ...string) *exec.Cmd
}

var theirs = program{"C", func(_ testing.TB, m measurement, args ...string) *exec.Cmd {
	kind := map[bool]string{false: "lat", true: "bw"}[m.bandwidth]
	switch m.op {
	case "fetchadd":
		return exec.Command("ib_atomic_"+kind, append([]string{"-A", "FETCH_AND_ADD"}, args...)...)
	case "cmpswap":
		return exec.Command("ib_atomic_"+kind, append([]string{"-A", "CMP_AND_SWAP"}, args...)...)
	}
	return exec.Command("ib_"+m.op+"_"+kind, args...)
}}

var ours = program{"Go", func(t testing.TB, m measurement, args ...string) *exec.Cmd {
	t.Helper()
	kind := map[bool]string{false: "_lat", true: "_bw"}[m.bandwidth]
	return process.Cmd(t, "verbena", append([]string{"perf", m.op + kind}, args...)...)
}}

// port is that of the last run.
var port = 18600

// nextPort returns a port for a run, so that no two meet.
func nextPort() int {
	for port++; listens(port); port++ {
		// Another program has it.
	}
	return port
}

func start(t testing.TB, p program, m measurement, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, p.command(t, m, args...))
}

// row is what either program has measured with one size.
type row struct {
	Bytes      int `json:"bytes"`
	Iterations int `json:"iterations"`

	Min     float64 `json:"min_us"`
	Max     float64 `json:"max_us"`
	Typical float64 `json:"typical_us"`
	Mean    float64 `json:"mean_us"`
	P99     float64 `json:"p99_us"`
	P999    float64 `json:"p99_9_us"`

	Peak        float64 `json:"peak_mib_s"`
	Average     float64 `json:"average_mib_s"`
	MessageRate float64 `json:"message_rate_mps"`
}

// run runs a server and a client to their ends and returns the client's rows.
func run(t testing.TB, d testdevice.Device, client, server program, m measurement, args ...string) []row {
	t.Helper()
	for tries := 5; ; tries-- {
		port := nextPort()
		args := append(slices.Clip(args), "-p", strconv.Itoa(port))
		serving := start(t, server, m, args...)
		serving.Eventually("listens", func() bool { return listens(port) })
		asking := start(t, client, m, append(args, d.IPv4.String())...)
		asked, served := finish(asking, serving)
		if tries > 1 && (uncalibrated(asking) || uncalibrated(serving)) {
			continue
		}
		require.Zero(t, asked, "%s client", client.name)
		require.Zero(t, served, "%s server", server.name)
		rows := parse(t, m, asking.Stdout())
		require.NotEmpty(t, rows, "%s client", client.name)
		return rows
	}
}

// finish waits for both ends of a run and returns their exit statuses. A server
// whose client has failed may wait for another one, so it is killed.
func finish(client, server *process.Process) (asked, served int) {
	if asked = client.Wait(); asked != 0 {
		server.Kill()
	}
	return asked, server.Wait()
}

// uncalibrated reports whether a program is perftest's and has given up because
// it could not find out how fast the processor's clock is, as on a busy
// machine.
func uncalibrated(p *process.Process) bool {
	return strings.Contains(p.Stdout()+p.Stderr(), "Can't produce a report")
}

// listens says whether anything listens on the port, without connecting to it:
// perftest takes the first client that comes.
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
func parse(t testing.TB, m measurement, out string) (rows []row) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v []float64
		for _, field := range strings.Fields(line) {
			// C's sum of squares overflows where messages take a second, on a
			// slow machine.
			f, err := strconv.ParseFloat(strings.Replace(field, "-nan", "nan", 1), 64)
			if err != nil {
				v = nil
				break
			}
			v = append(v, f)
		}
		switch {
		case m.bandwidth && len(v) >= 5:
			rows = append(rows, row{Bytes: int(v[0]), Iterations: int(v[1]), Peak: v[2], Average: v[3], MessageRate: v[4]})
		case !m.bandwidth && len(v) >= 9:
			rows = append(rows, row{Bytes: int(v[0]), Iterations: int(v[1]), Min: v[2], Max: v[3], Typical: v[4], Mean: v[5], P99: v[7], P999: v[8]})
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
