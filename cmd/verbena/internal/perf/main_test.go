// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

var tested = programtest.Of(Program)

// The defaults are perftest's.
func TestParse(t *testing.T) {
	latency := measure.Test{
		Op: measure.Send, Transport: ibverbs.QPTypeRC, QPs: 1, Sizes: []int{2}, Iterations: 1000,
		Depth: 16, List: 1, Moderation: 16, Receives: 512, Inline: 220,
	}
	bandwidth := measure.Test{
		Op: measure.Write, Transport: ibverbs.QPTypeRC, Bandwidth: true, QPs: 1, Sizes: []int{65536}, Iterations: 5000,
		Depth: 128, List: 1, Moderation: 100, Receives: 512,
	}
	latency.Fit = measure.Fit{Receives: true, Inline: true}
	bandwidth.Fit = latency.Fit
	with := func(t measure.Test, change func(t *measure.Test)) measure.Test { change(&t); return t }
	for args, want := range map[string]measure.Test{
		"send_lat":              latency,
		"write_bw":              bandwidth,
		"send_lat -e --netpoll": with(latency, func(t *measure.Test) { t.Events, t.Netpoll = true, true }),
		"send_lat -s 64 -n 7 -I 0 -e": with(latency, func(t *measure.Test) {
			t.Sizes, t.Iterations, t.Inline, t.Events, t.Fit.Inline = []int{64}, 7, 0, true, false
		}),
		"send_lat -c ud -r 9": with(latency, func(t *measure.Test) { t.Transport, t.Receives, t.Fit.Receives = ibverbs.QPTypeUD, 9, false }),
		"fetchadd_lat":        with(latency, func(t *measure.Test) { t.Op, t.Sizes = measure.FetchAdd, []int{8} }),
		"write_bw -l 4 -n 10": with(bandwidth, func(t *measure.Test) { t.List, t.Moderation, t.Iterations = 4, 4, 12 }),
		"write_bw -t 32 -Q 8": with(bandwidth, func(t *measure.Test) { t.Depth, t.Moderation = 32, 8 }),
		"write_bw -u 18":      with(bandwidth, func(t *measure.Test) { t.Timeout = 1073741824 * time.Nanosecond }),
		"write_bw -D 5 -q 4 -b": with(bandwidth, func(t *measure.Test) {
			t.Iterations, t.Duration, t.QPs, t.Both = measure.Endless, 5*time.Second, 4, true
		}),
		"send_lat -c UD -a": with(latency, func(t *measure.Test) {
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
	require.NoError(t, o.program().Parse(strings.Fields("send_lat -d rxe0 -i 1 -p 1234 -R --conn host")))
	require.Equal(t, measure.Where{Device: "rxe0", Port: 1, TCPPort: 1234, RDMACM: true, Conn: true, Server: "host"}, o.where)
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "verbena perf", 2, map[string]string{
		"":                                "the test is missing, such as send_lat or write_bw, or the hosts of --mesh",
		"send_lat --mesh a,b":             "--mesh measures send_lat and write_bw of all agents' devices, without a test",
		"--mesh a,b -a":                   "without -a",
		"--mesh a,b -c UD":                "without -c",
		"--mesh a,b -W 0":                 "expected seconds from 1 to",
		"--mesh a,b -s 16777216":          "bytes: 16777216 is not from 1 to 8388608",
		"put_lat":                         `no such test: "put_lat"`,
		"192.0.2.1":                       `no such test: "192.0.2.1"`,
		"send_lat -c XRC":                 "-c XRC: no such type",
		"write_lat -c UD":                 "UD does not support write",
		"send_lat -c UC -R":               "-R and --conn connect queue pairs of type RC",
		"send_lat -c UD --conn":           "-R and --conn connect queue pairs of type RC",
		"send_bw -q 2 -R":                 "-R and --conn have one queue pair and one direction",
		"send_bw -b --conn":               "-R and --conn have one queue pair and one direction",
		"send_bw -u 18 -R":                "-R and --conn have no -u",
		"-u 32":                           "expected a number from 1 to 31",
		"send_bw -D 1 --conn":             "--conn has no -D",
		"send_bw -D 1 -n 10":              "-D and -n exclude each other",
		"send_bw -D 1 -a":                 "a test with a duration can have only one size",
		"send_lat -q 2":                   "a test of latency has one queue pair",
		"send_lat -b":                     "a test of latency has one queue pair, and only one end sends at a time",
		"send_bw -q 65":                   "expected a number from 1 to 64",
		"-s 0":                            "expected a number from 1 to 1073741824",
		"-n 4":                            "expected a number from 5 to 2147483647",
		"send_bw -l 3":                    "must be multiples of the list length 3",
		"send_lat host more":              `unexpected argument "more"`,
		"--plot x.svg --compare x":        "--compare x: expected name=file",
		"--plot x.png":                    "--plot x.png: a plot is an SVG file: use a name that ends in .svg",
		"fetchadd_lat -s 16":              "fetchadd always uses 8 bytes",
		"write_lat -e":                    "cannot wait for events",
		"send_bw -Q 200 -t 100 -l 1 host": "there is a completion for every 200 messages, but only 100 are in flight",
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "send_lat, write_lat, writeimm_lat, read_lat, fetchadd_lat, cmpswap_lat,", "-D, --duration seconds")
}

func TestNobodyThere(t *testing.T) {
	status, _, stderr := tested.Run("send_lat -p 1 127.0.0.1")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "connection refused; does verbena perf run there, with the same test and without a host?")
}

// A server that could serve no client does not wait for one.
func TestNoDevice(t *testing.T) {
	for _, args := range []string{"send_lat -d nosuch", "write_bw -d nosuch", "send_lat -d nosuch -R"} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 1, status, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, "verbena perf: ", args)
	}
}

func TestPlotOfRuns(t *testing.T) {
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "a.json"), filepath.Join(dir, "a.svg")
	require.NoError(t, os.WriteFile(file, []byte(`{"rows": [{"bytes": 2, "typical_us": 1, "p99_us": 2}, {"bytes": 64, "typical_us": 2, "p99_us": 3}]}`), 0o600))
	status, _, stderr := tested.Run("--plot " + svg + " --compare one=" + file)
	require.Zero(t, status, stderr)
	b, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(b), "one</text>")
	status, _, stderr = tested.Run("--plot " + svg + " --compare one=" + filepath.Join(dir, "none"))
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "none")
}

func TestJSON(t *testing.T) {
	for name, args := range map[string]string{"latency": "send_lat -n 5", "bandwidth": "write_bw -D 10 -q 4 -b"} {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		test, err := o.test()
		require.NoError(t, err)
		result := measure.NewResult(test)
		row := measure.Row{Bytes: 2, Iterations: 5, Min: 1.25, Max: 5, Typical: 1.5, Mean: 2, Stdev: 0.5, P99: 4.5, P999: 5, CPU: 2.5}
		if test.Bandwidth {
			row = measure.Row{Bytes: 65536, Iterations: 100000, Peak: 12000, Average: 11650.5, Gigabits: 97.75, MessageRate: 0.1864, CPU: 0.25}
		}
		result.Rows = append(result.Rows, row)
		var stdout bytes.Buffer
		require.NoError(t, program.Output{Stdout: &stdout}.JSON(result))
		golden.Compare(t, "testdata/"+name+".json", stdout.String())
	}
}

// There is a line only on a terminal.
func TestProgress(t *testing.T) {
	var stderr bytes.Buffer
	p := progress{to: &stderr}
	require.Nil(t, p.on(&stderr))
	p.show(500*time.Millisecond, 64, 10)
	p.clear()
	require.Empty(t, stderr.String())
	p.show(2*time.Second, 65536, 100000)
	p.show(2500*time.Millisecond, 65536, 110000)
	p.show(3*time.Second, 65536, 150000)
	p.show(time.Second, 2, 1)
	p.clear()
	require.Equal(t, "\r65536 bytes: 100000 messages in 2 s, 26.21 Gb/s\r65536 bytes: 150000 messages in 3 s, 26.21 Gb/s"+
		"\r2 bytes: 1 messages in 1 s, 0.00 Gb/s"+strings.Repeat(" ", 10)+"\r"+strings.Repeat(" ", 37)+"\r", stderr.String())
}
