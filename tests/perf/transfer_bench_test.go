// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkTransfer moves memory between two processes with package transfer,
// over one device and over two, beside TCP's loopback with as many connections,
// and beside plain batches over connections of one device, in turn. It prints
// rows of a Markdown table: MiB/s, and the smallest, the median and the largest
// ratio to TCP and to plain batches in a round.
func BenchmarkTransfer(b *testing.B) {
	if !testdevice.Soft() {
		b.Skip("measures the device in user space")
	}
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, op := range []string{"read", "write"} {
			for _, threads := range []int{1, 8} {
				for _, connections := range []int{1, 4} {
					m := moving{op, size, threads, connections}
					b.Run(strings.Join(m.args(), "/"), func(b *testing.B) { compareMovers(b, m) })
				}
			}
		}
	}
}

// devicesOf returns the environment of a process whose devices have addresses
// in a network of their own, and the first address.
func devicesOf(process, devices int) (env, host string) {
	var each []string
	for i := range devices {
		each = append(each, fmt.Sprintf("soft%d=10.77.%d.%d", i, process, i+1))
	}
	return "VERBENA_DEVICES=" + strings.Join(each, ";"), fmt.Sprintf("10.77.%d.1", process)
}

// moveOnce returns MiB/s.
func moveOnce(b *testing.B, network string, devices int, m moving) float64 {
	b.Helper()
	env, host := devicesOf(1, devices)
	cmd := process.Command(b, "memoryserver", append([]string{network, host}, m.args()...)...)
	cmd.Env = append(cmd.Env, env)
	server := process.Start(b, cmd)
	address := strings.TrimSpace(server.Line())
	env, _ = devicesOf(2, devices)
	cmd = process.Command(b, "mover", append([]string{network, address}, m.args()...)...)
	cmd.Env = append(cmd.Env, env)
	client := process.Start(b, cmd)
	require.Zero(b, client.Wait(), client.Output())
	require.NoError(b, server.Stdin.Close())
	require.Zero(b, server.Wait(), server.Output())
	rate, err := strconv.ParseFloat(strings.TrimSpace(client.Stdout()), 64)
	require.NoError(b, err)
	return rate
}

func compareMovers(b *testing.B, m moving) {
	var tcp, plain, one, two []float64
	for b.Loop() {
		for range rounds(b) {
			tcp = append(tcp, moveOnce(b, "tcp", 1, m))
			plain = append(plain, moveOnce(b, "rdmacm", 1, m))
			one = append(one, moveOnce(b, "transfer", 1, m))
			two = append(two, moveOnce(b, "transfer", 2, m))
		}
	}
	ratios := func(ours, theirs []float64) string {
		all := make([]float64, len(ours))
		for i := range all {
			all[i] = ours[i] / theirs[i]
		}
		return fmt.Sprintf("%.2f, %.2f, %.2f", slices.Min(all), median(all), slices.Max(all))
	}
	fmt.Printf("\n| %s | %d | %d | %d | %.0f | %.0f | %.0f | %.0f | %s | %s | %s |\n", m.op, m.size, m.threads, m.connections,
		median(tcp), median(plain), median(one), median(two), ratios(one, tcp), ratios(one, plain), ratios(two, one))
}
