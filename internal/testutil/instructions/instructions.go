// SPDX-License-Identifier: Apache-2.0

// Package instructions counts the processor instructions of operations with
// valgrind. The counts are the same in each run, however busy the machine is.
package instructions

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

	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// variable is the environment variable that tells Run which operation to run,
// and how often.
const variable = "VERBENA_COUNTED"

// file has the release of Go to which the counts apply, and then the counts for
// a package.
const file = "testdata/instructions.txt"

// Run runs the operation that Check has chosen. TestCounted must call Run and
// nothing else.
func Run(t *testing.T, operations func(t *testing.T) map[string]func() error) {
	t.Helper()
	name, times, ok := strings.Cut(os.Getenv(variable), ":")
	if !ok {
		t.Skip("TestInstructions runs it")
	}
	n, err := strconv.Atoi(times)
	require.NoError(t, err)
	operation := operations(t)[name]
	for range n {
		if err := operation(); err != nil { // not require.NoError, which takes 2,000 instructions
			t.Fatal(err)
		}
	}
}

// Check requires that the number of instructions of each operation is that in
// testdata/instructions.txt, within 2 %. With -update, it writes the file
// instead. The test binary must have a test TestCounted that calls Run.
func Check(t *testing.T, operations func(t *testing.T) map[string]func() error) {
	t.Helper()
	if os.Getenv("VERBENA_REQUIRE_VALGRIND") == "" {
		t.Skip("takes half a minute under valgrind: make baseline runs it")
	}
	release := strings.Join(strings.Split(runtime.Version(), ".")[:2], ".")
	text, err := os.ReadFile(file)
	if !*golden.Update {
		require.NoError(t, err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
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
	for _, name := range slices.Sorted(maps.Keys(operations(t))) {
		const few, many = 1000, 21000
		each := float64(count(t, name, many)-count(t, name, few)) / (many - few)
		fmt.Fprintf(&got, "%s\t%.0f\n", name, each)
		t.Logf("%-20s %8.0f instructions", name, each)
		if !*golden.Update {
			require.InEpsilon(t, want[name], each, 0.02, "%s: -update if that is meant", name)
		}
	}
	if *golden.Update {
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
	}
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// count returns the number of instructions of a process that runs an operation
// the given number of times. It turns off the garbage collector and preemption
// by signals, whose instructions vary, and the instruction RDTSCP: valgrind
// tells programs that the processor has it, but cannot run it where that lacks
// it.
func count(t *testing.T, name string, times int) int {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", self, "-test.run", "^TestCounted$")
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1,cpu.rdtscp=off", "GOMAXPROCS=1", "GOGC=off", fmt.Sprintf("%s=%s:%d", variable, name, times))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	m := collected.FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return n
}
