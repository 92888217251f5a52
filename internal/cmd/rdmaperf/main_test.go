// SPDX-License-Identifier: Apache-2.0

package rdmaperf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cmd/rdmaperf/perf"
	"github.com/verbena-go/verbena/internal/testutil/programtest"
)

var main = programtest.Main(Main)

// The defaults are perftest's.
func TestParse(t *testing.T) {
	latency := perf.Test{
		Op: perf.Send, Transport: ibverbs.QPTypeRC, Sizes: []int{2}, Iterations: 1000,
		Depth: 16, List: 1, Moderation: 16, Receives: 512, Inline: 220,
	}
	bandwidth := perf.Test{
		Op: perf.Write, Transport: ibverbs.QPTypeRC, Bandwidth: true, Sizes: []int{65536}, Iterations: 5000,
		Depth: 128, List: 1, Moderation: 100, Receives: 512,
	}
	with := func(t perf.Test, change func(t *perf.Test)) perf.Test { change(&t); return t }
	for args, want := range map[string]perf.Test{
		"":                       latency,
		"-o write -b":            bandwidth,
		"-e --netpoll":           with(latency, func(t *perf.Test) { t.Events, t.Netpoll = true, true }),
		"-s 64 -n 7 -I 0 -e":     with(latency, func(t *perf.Test) { t.Sizes, t.Iterations, t.Inline, t.Events = []int{64}, 7, 0, true }),
		"-c ud -r 9":             with(latency, func(t *perf.Test) { t.Transport, t.Receives = ibverbs.QPTypeUD, 9 }),
		"-o fetchadd":            with(latency, func(t *perf.Test) { t.Op, t.Sizes = perf.FetchAdd, []int{8} }),
		"-b -o write -l 4 -n 10": with(bandwidth, func(t *perf.Test) { t.List, t.Moderation, t.Iterations = 4, 4, 12 }),
		"-b -o write -t 32 -Q 8": with(bandwidth, func(t *perf.Test) { t.Depth, t.Moderation = 32, 8 }),
		"-c UD -a": with(latency, func(t *perf.Test) {
			t.Transport, t.Sizes = ibverbs.QPTypeUD, []int{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
		}),
	} {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)), args)
		got, err := o.test()
		require.NoError(t, err, args)
		require.Equal(t, want, *got, args)
	}
	o := &options{}
	require.NoError(t, o.program().Parse(strings.Fields("-d rxe0 -i 1 -p 1234 -R --conn host")))
	require.Equal(t, perf.Where{Device: "rxe0", Port: 1, TCPPort: 1234, RDMACM: true, Conn: true, Server: "host"}, o.where)
}

func TestWrongArguments(t *testing.T) {
	main.WrongArguments(t, "rdmaperf", 2, map[string]string{
		"-o put":                     "-o put -c RC: no such operation or type",
		"-c XRC":                     "-o send -c XRC: no such operation or type",
		"-c UD -o write":             "UD does not support write",
		"-c UC -R":                   "-R and --conn connect queue pairs of type RC",
		"-c UD --conn":               "-R and --conn connect queue pairs of type RC",
		"-s 0":                       "expected a number from 1 to 1073741824",
		"-n 4":                       "expected a number from 5 to 2147483647",
		"-b -l 3":                    "must be multiples of the list length 3",
		"host more":                  `unexpected argument "more"`,
		"--plot x.svg --compare x":   "--compare x: expected name=file",
		"--plot x.png":               "--plot x.png: a plot is an SVG file: use a name that ends in .svg",
		"-o fetchadd -s 16":          "fetchadd always uses 8 bytes",
		"-o write -e":                "no event to wait for",
		"-b -Q 200 -t 100 -l 1 host": "a completion for every 200 messages never comes with 100 in flight",
	})
}

func TestHelp(t *testing.T) {
	main.Help(t, "-o, --op operation", "send, write, writeimm, read, fetchadd, cmpswap")
}

func TestNobodyThere(t *testing.T) {
	status, _, stderr := main.Run("-p 1 127.0.0.1")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "connection refused")
}

// A server that could serve nobody does not wait for anybody.
func TestNoDevice(t *testing.T) {
	for _, args := range []string{"-d nosuch", "-d nosuch -b -o write", "-d nosuch -R"} {
		status, stdout, stderr := main.Run(args)
		require.Equal(t, 1, status, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, "rdmaperf: ", args)
	}
}

func TestPlotOfRuns(t *testing.T) {
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "a.json"), filepath.Join(dir, "a.svg")
	require.NoError(t, os.WriteFile(file, []byte(`{"rows": [{"bytes": 2, "typical_us": 1, "p99_us": 2}, {"bytes": 64, "typical_us": 2, "p99_us": 3}]}`), 0o600))
	status, _, stderr := main.Run("--plot " + svg + " --compare one=" + file)
	require.Zero(t, status, stderr)
	b, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(b), "one</text>")
	status, _, stderr = main.Run("--plot " + svg + " --compare one=" + filepath.Join(dir, "none"))
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "none")
}
