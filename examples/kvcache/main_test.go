// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "-listen", "-listen :7471 192.0.2.1:7471", "192.0.2.1:7471 192.0.2.2:7471",
		"-size 8192 192.0.2.1:7471", "-size 2097153 192.0.2.1:7471", "-pages 0 192.0.2.1:7471", "-pages 257 192.0.2.1:7471",
		"-layers 0 192.0.2.1:7471", "-layers 1025 192.0.2.1:7471", "-prompts 0 -listen :7471")
}

// Prompts are complete, with pages of each size.
func TestPrompts(t *testing.T) {
	d := testdevice.Require(t)
	for _, size := range []int{16 << 10, 100_000, 2 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			shape := []string{"-layers", "3", "-pages", "4", "-size", strconv.Itoa(size)}
			prefill := process.StartMain(t, append(shape, "-prompts", "4", "-listen", d.IPv4.String()+":0")...)
			decode := process.StartMain(t, append(shape, prefill.Prints(`listening on (\S+)\n`))...)
			require.Zero(t, prefill.Wait())
			require.Empty(t, prefill.Stderr())
			decode.Signal(os.Interrupt)
			require.Zero(t, decode.Wait())
			require.Empty(t, decode.Stderr())

			layers := regexp.MustCompile(`(?m)^prompt \d+, layer \d+: [0-9a-f]{64}$`).FindAllString(decode.Stdout(), -1)
			require.Len(t, layers, 4*3)
			unique := map[string]bool{}
			for _, layer := range layers {
				unique[layer[len(layer)-64:]] = true
			}
			require.Len(t, unique, 4*3, "no layer is like another")
		})
	}
}

// A decode process that is killed in the middle of a prompt leaves the prompt
// to others. One may join later, and serve another prefill process.
func TestDecodeProcessDies(t *testing.T) {
	d := testdevice.Require(t)
	shape := []string{"-layers", "4", "-pages", "4", "-size", "65536"}
	start := func(args ...string) *process.Process { return process.StartMain(t, append(shape, args...)...) }
	// There are always prompts for a process to be in the middle of.
	prefill := start("-prompts", "1000000", "-listen", d.IPv4.String()+":0")
	address := prefill.Prints(`listening on (\S+)\n`)
	dying := start(address)
	name := regexp.QuoteMeta(prefill.Prints(`(peer \S+) has joined\n`))
	dying.Prints(`prompt 0, layer 0: `)
	staying := start(address)
	staying.Prints(`prompt \d+, layer 3: `)
	dying.Kill()
	prompt := prefill.Says(name + ` has left without prompt (\d+): `)
	prefill.Prints(`prompt ` + prompt + ` is at `)
	require.NotRegexp(t, `prompt `+prompt+` is at `+name+`\n`, prefill.Stdout())
	joining := start(address)
	joining.Prints(`prompt \d+, layer 3: `)
	prefill.Signal(os.Interrupt)
	require.Zero(t, prefill.Wait())

	require.Zero(t, start("-prompts", "20", "-listen", address).Wait())
	for _, p := range []*process.Process{staying, joining} {
		p.Signal(os.Interrupt)
		require.Zero(t, p.Wait())
		require.Empty(t, p.Stderr())
	}
}

// Processes must have the same flags.
func TestOtherFlags(t *testing.T) {
	d := testdevice.Require(t)
	prefill := process.StartMain(t, "-pages", "4", "-listen", d.IPv4.String()+":0")
	address := prefill.Prints(`listening on (\S+)\n`)
	decode := process.RunMain(t, "-pages", "3", address)
	require.Equal(t, 1, decode.Wait())
	require.Contains(t, decode.Stderr(), "prompts have 8 layers of 4 pages of 65536 bytes here")
	prefill.Signal(os.Interrupt)
	require.Zero(t, prefill.Wait())
	require.Empty(t, prefill.Stderr())
}

func TestNobodyListens(t *testing.T) {
	d := testdevice.Require(t)
	p := process.RunMain(t, d.IPv4.String()+":1")
	require.Equal(t, 1, p.Wait())
	require.Contains(t, p.Stderr(), "kvcache: ")
}
