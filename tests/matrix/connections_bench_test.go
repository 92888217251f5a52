// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkConnections has ucmatose make many connections, in C, which has one
// event channel for all, and in Go, and prints what that takes as rows of a
// Markdown table.
func BenchmarkConnections(b *testing.B) {
	at, from := hosts(b)
	const few, many = 100, 1000
	for b.Loop() {
		fmt.Println()            // a benchmark's first line has its name
		var took [2][2]footprint // by side, and few or many
		for i, s := range []side{theirs, ours} {
			for k, n := range []int{few, many} {
				took[i][k] = connections(b, s, at, from, n)
			}
		}
		for k, n := range []int{few, many} {
			row("threads of ucmatose's server", n, float64(took[0][k].threads), float64(took[1][k].threads))
			row("KiB of ucmatose's server", n, float64(took[0][k].resident), float64(took[1][k].resident))
		}
		each := func(f [2]footprint) float64 { return float64(f[1].resident-f[0].resident) / (many - few) }
		row(fmt.Sprintf("KiB of ucmatose's server for each connection beyond %d", few), many, each(took[0]), each(took[1]))
	}
}

func row(what string, n int, c, g float64) {
	fmt.Printf("| %s | %d | %.0f | %.0f | %.2f |\n", what, n, c, g, g/c)
}

// footprint is what a process takes from the system at most.
type footprint struct{ threads, resident int } // KiB

// connections makes so many and returns what the server took.
func connections(b *testing.B, s side, at, from host, n int) (f footprint) {
	b.Helper()
	args := fmt.Sprintf(" -c %d -C 1 -S 100", n)
	server := s.start(b, at, "ucmatose", "-b "+at.v4.String()+args)
	server.listens()
	client := s.start(b, from, "ucmatose", "-s "+at.v4.String()+args)
	for !server.Ended() {
		f.look(b, server.Pid())
		time.Sleep(10 * time.Millisecond)
	}
	client.succeeds()
	server.succeeds()
	require.NotZero(b, f.resident)
	return f
}

// look keeps the most that a process has had.
func (f *footprint) look(b *testing.B, pid int) {
	b.Helper()
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // or it has ended
	for line := range strings.Lines(string(status)) {
		for name, most := range map[string]*int{"Threads": &f.threads, "VmHWM": &f.resident} {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				n, err := strconv.Atoi(strings.Fields(rest)[0])
				require.NoError(b, err)
				*most = max(*most, n)
			}
		}
	}
}
