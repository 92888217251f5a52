//go:build linux && cgo && amd64 && !race

package ibverbs

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cloops"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// countedEnv makes TestCounted do an operation so many times, for valgrind to
// count its instructions.
const countedEnv = "VERBENA_COUNTED"

// counted are the operations of the data path, with a device that always
// succeeds.
func counted(t *testing.T) map[string]func() error {
	f := newFakeDevice(t)
	f.Endless()
	mr := fakeMR(t, 4096, 1)
	one, many := filled(t, mr, 1), filled(t, mr, 64)
	again, err := NewSendBatch(64, 1)
	require.NoError(t, err)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(1, mr.All()))
	wcs := make([]WC, 64)
	segment := mr.Sub(0, 64)
	second := func(_ int, err error) error { return err }
	return map[string]func() error{
		"an empty call":    func() error { cloops.Empty(); return nil },
		"post 1":           func() error { return second(f.qp.PostSend(one)) },
		"post 64":          func() error { return second(f.qp.PostSend(many)) },
		"post 64 extended": func() error { return second(f.ex.PostSend(many)) },
		"post 1 receive":   func() error { return second(f.qp.PostRecv(recv)) },
		"poll 1":           func() error { return second(f.cq.Poll(wcs[:1])) },
		"poll 64":          func() error { return second(f.cq.Poll(wcs)) },
		"exchange 1":       func() error { return second(f.qp.Exchange(recv, one, f.cq, wcs[:1], 1, MaxSpin)) },
		"fill and post 64": func() error {
			again.Reset()
			for i := range 64 {
				if err := again.Send(uint64(i), SendSignaled, segment); err != nil {
					return err
				}
			}
			return second(f.qp.PostSend(again))
		},
	}
}

// TestCounted is what TestInstructions runs.
func TestCounted(t *testing.T) {
	name, times, ok := strings.Cut(os.Getenv(countedEnv), ":")
	if !ok {
		t.Skip("TestInstructions runs it")
	}
	n, err := strconv.Atoi(times)
	require.NoError(t, err)
	operation := counted(t)[name]
	for range n {
		if err := operation(); err != nil { // require takes 2,000 instructions
			t.Fatal(err)
		}
	}
}

// Each operation takes as many instructions as testdata/instructions.txt says,
// give or take a twentieth. It was written for the release of Go in its first
// line; -update writes it anew.
func TestInstructions(t *testing.T) {
	if os.Getenv("VERBENA_REQUIRE_VALGRIND") == "" {
		t.Skip("takes half a minute under valgrind: make baseline runs it")
	}
	release := strings.Join(strings.Split(runtime.Version(), ".")[:2], ".")
	file, err := os.ReadFile("testdata/instructions.txt")
	if !*golden.Update {
		require.NoError(t, err)
	}
	lines := strings.Split(strings.TrimSpace(string(file)), "\n")
	if lines[0] != release && !*golden.Update {
		t.Skipf("instructions were counted with %s, this is %s", lines[0], release)
	}
	want := map[string]float64{}
	for _, line := range lines[1:] {
		name, count, _ := strings.Cut(line, "\t")
		want[name], err = strconv.ParseFloat(count, 64)
		require.NoError(t, err)
	}
	var got strings.Builder
	fmt.Fprintln(&got, release)
	for _, name := range slices.Sorted(maps.Keys(counted(t))) {
		const few, many = 1000, 21000
		each := float64(instructions(t, name, many)-instructions(t, name, few)) / (many - few)
		fmt.Fprintf(&got, "%s\t%.0f\n", name, each)
		t.Logf("%-20s %8.0f instructions", name, each)
		if !*golden.Update {
			require.InEpsilon(t, want[name], each, 0.05, "%s: -update if that is meant", name)
		}
	}
	if *golden.Update {
		require.NoError(t, os.WriteFile("testdata/instructions.txt", []byte(got.String()), 0o644))
	}
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// instructions returns how many a process takes that does an operation so many
// times. The collector and signals would add some by chance.
func instructions(t *testing.T, name string, times int) int {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", self, "-test.run", "^TestCounted$")
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1", "GOGC=off", fmt.Sprintf("%s=%s:%d", countedEnv, name, times))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	m := collected.FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return n
}
