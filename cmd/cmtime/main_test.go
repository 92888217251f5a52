// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/cmtime/internal/summary"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(cmtime).program() })

func TestParse(t *testing.T) {
	defaults := cmtime{connections: 100, port: 7471, retries: 2, timeout: 2 * time.Second}
	programtest.Parses(t, (*cmtime).program, defaults, map[string]func(*cmtime){
		"":                     nil,
		"-s 192.0.2.1 -j":      func(c *cmtime) { c.server, c.json = "192.0.2.1", true },
		"-b::1 -c 1048576":     func(c *cmtime) { c.bind, c.connections = "::1", 1<<20 },
		"-p 65535 -r 0 -t 1":   func(c *cmtime) { c.port, c.retries, c.timeout = math.MaxUint16, 0, time.Millisecond },
		"--server a --bind b":  func(c *cmtime) { c.server, c.bind = "a", "b" },
		"--port=1 --retries=7": func(c *cmtime) { c.port, c.retries = 1, 7 },
		"--connections=1 --timeout=5 --json": func(c *cmtime) {
			c.connections, c.timeout, c.json = 1, 5*time.Millisecond, true
		},
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "cmtime", 1, map[string]string{
		"-c 0":     "expected a number from 1 to 1048576",
		"-p 65536": "expected a number from 1 to 65535",
		"-r 8":     "expected a number from 0 to 7",
		"-t 0":     "expected milliseconds from 1 to 1048576",
		"-x":       "unknown shorthand flag",
		"more":     `unexpected argument "more"`,
	})
}

func TestHelp(t *testing.T) { tested.Help(t, "microseconds") }

func TestFails(t *testing.T) {
	status, stdout, stderr := tested.Run("-s unknown.invalid")
	require.Equal(t, 1, status)
	require.Empty(t, stdout)
	require.NotEmpty(t, stderr)
}

func TestPrint(t *testing.T) {
	results := []result{{"resolve addr", 20.2, 200, summary.Durations{Min: 100, Mean: 150, P50: 151, P90: 190, P99: 199, Max: 200}}}
	var out bytes.Buffer
	require.NoError(t, print(&out, results, false))
	require.Equal(t, ""+
		"step              total ms  us / conn     min us     avg us     50% us     90% us     99% us     max us\n"+
		"resolve addr :       20.20     200.00     100.00     150.00     151.00     190.00     199.00     200.00\n", out.String())
	out.Reset()
	require.NoError(t, print(&out, results, true))
	require.JSONEq(t, `[{"step": "resolve addr", "total_ms": 20.2, "us_per_connection": 200, "min_us": 100, "mean_us": 150,
		"p50_us": 151, "p90_us": 190, "p99_us": 199, "max_us": 200}]`, out.String())
	var decoded []result
	require.NoError(t, json.Unmarshal(out.Bytes(), &decoded))
	require.Equal(t, results, decoded)
}
