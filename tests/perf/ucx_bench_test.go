// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkUCX moves memory between two processes with UCX and with package
// transfer, in turn, both over one connection of one device in user space. It
// prints rows of a Markdown table: MiB/s, and the smallest, the median and the
// largest ratio of a round.
func BenchmarkUCX(b *testing.B) {
	if !testdevice.Soft() {
		b.Skip("measures the device in user space")
	}
	if _, err := exec.LookPath("ucx_perftest"); err != nil {
		b.Skip("needs UCX's programs, which make setup installs")
	}
	softly := onSoftDevice(b)
	for _, size := range []int{64 << 10, 1 << 20} {
		for _, op := range []string{"read", "write"} {
			m := moving{op, size, 1, 1}
			b.Run(fmt.Sprint(op, size), func(b *testing.B) {
				var ucx, ours, ratios []float64
				for b.Loop() {
					for range rounds(b) {
						theirs, mine := ucxOnce(b, softly, m), moveOnce(b, "transfer", 1, m)
						ucx, ours, ratios = append(ucx, theirs), append(ours, mine), append(ratios, mine/theirs)
					}
				}
				fmt.Printf("\n| %s | %d | %.0f | %.0f | %.2f, %.2f, %.2f |\n", op, size, median(ucx), median(ours),
					slices.Min(ratios), median(ratios), slices.Max(ratios))
			})
		}
	}
}

// ucxOnce returns MiB/s of UCX's puts or gets.
func ucxOnce(b *testing.B, softly func(testing.TB, ...string) *exec.Cmd, m moving) float64 {
	b.Helper()
	port := strconv.Itoa(20000 + os.Getpid()%10000) // of TCP, over which the programs find each other
	start := func(args ...string) *process.Process {
		cmd := softly(b, append([]string{"ucx_perftest", "-p", port}, args...)...)
		cmd.Env = append(cmd.Environ(), "UCX_TLS=rc_v", "UCX_NET_DEVICES=soft0:1")
		return process.Start(b, cmd)
	}
	test := map[string]string{"read": "ucp_get", "write": "ucp_put_bw"}[m.op]
	server := start()
	for { // until the server listens
		client := start("127.0.0.1", "-t", test, "-s", strconv.Itoa(m.size), "-n", strconv.Itoa(1<<30/m.size), "-O", strconv.Itoa(m.requests()))
		if client.Wait() != 0 {
			require.Contains(b, client.Output(), "Connection refused")
			require.False(b, server.Ended(), server.Output())
			continue
		}
		require.Zero(b, server.Wait(), server.Output())
		// The columns are the count, three times, two bandwidths and two rates.
		found := regexp.MustCompile(`Final: +\d+ +\S+ +\S+ +\S+ +\S+ +(\S+)`).FindStringSubmatch(client.Stdout())
		require.NotNil(b, found, client.Output())
		rate, err := strconv.ParseFloat(found[1], 64)
		require.NoError(b, err)
		return rate
	}
}
