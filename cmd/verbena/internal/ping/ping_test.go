// SPDX-License-Identifier: Apache-2.0

package ping

import (
	"bytes"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

var tested = programtest.Of(Program)

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "verbena ping", 2, map[string]string{
		"":                   "the host is missing",
		"-x":                 "unknown shorthand flag",
		"-p 0 host":          "expected a number from 1 to 65535",
		"-s 7 host":          "expected a number from 8 to 1048576",
		"-i -1 host":         "expected seconds from 0 to 2147483647",
		"-i NaN host":        "expected seconds from 0",
		"-W 0 host":          "expected seconds from 0.001",
		"host more":          `unexpected argument "more"`,
		"192.0.2.1:7471":     "pass the port as a flag: -p 7471 192.0.2.1",
		"-l [2001:db8::1]:1": "pass the port as a flag: -p 1 2001:db8::1",
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "verbena ping -l [flags] [ADDRESS]", "-W, --timeout seconds", "(default 5)", "(0: at once) (default 1)")
}

func TestGreeting(t *testing.T) {
	for _, size := range []int{minSize, 64, maxSize} {
		got, ok := greeted(append(greeting(size), 0, 0, 0))
		require.True(t, ok)
		require.Equal(t, size, got)
	}
	for _, data := range [][]byte{nil, {0}, []byte(hello), greeting(0), greeting(minSize - 1), greeting(maxSize + 1), greeting(64)[1:], make([]byte, 56)} {
		_, ok := greeted(data)
		require.False(t, ok, "%q", data)
	}
}

func FuzzGreeted(f *testing.F) {
	f.Add(greeting(64))
	f.Add([]byte(hello))
	f.Fuzz(func(t *testing.T, data []byte) {
		if size, ok := greeted(data); ok {
			require.True(t, bytes.HasPrefix(data, greeting(size)))
		}
	})
}

func TestSummary(t *testing.T) {
	var stdout bytes.Buffer
	o := &options{host: "192.0.2.1", port: 7471, size: 64}
	c := &client{options: o, out: program.Output{Stdout: &stdout}, summary: summary{Host: o.host, Port: o.port, Size: 64}}
	c.report(1, 0, errors.New("no answer within 5s"))
	require.Equal(t, "seq=1 lost: no answer within 5s\n", stdout.String())
	require.Equal(t, 100.0, c.summary.Lost)
	for _, us := range []float64{10, 20, 30} {
		c.summary.add(&us)
	}
	c.summary.Milliseconds = 3000.4
	stdout.Reset()
	require.NoError(t, c.finish())
	require.Equal(t, `
--- 192.0.2.1 ping statistics ---
4 messages sent, 3 answered, 25% lost, time 3000 ms
rtt min/avg/max/stdev = 0.010/0.020/0.030/0.008 ms
`, stdout.String())

	o.asJSON = true
	stdout.Reset()
	c.report(5, 21500*time.Nanosecond, nil)
	c.report(6, 0, errors.New("no answer within 5s"))
	require.NoError(t, c.finish())
	golden.Compare(t, "testdata/ping.json", anyTime.ReplaceAllString(stdout.String(), `"time":"2026-01-02T03:04:05.678Z"`))
}

var anyTime = regexp.MustCompile(`"time":"[^"]*"`)

func TestHappenings(t *testing.T) {
	var stdout bytes.Buffer
	s := &server{out: program.Output{Stdout: &stdout}}
	all := []happening{
		{Event: "listening", Address: "[::]:7471"},
		{Event: "connected", Address: "192.0.2.1:40000", Size: 64},
		{Event: "refused", Address: "192.0.2.2:40000", Error: "no"},
		{Event: "ended", Address: "192.0.2.1:40000", Answered: 3},
		{Event: "ended", Address: "192.0.2.1:40000", Answered: 3, Error: "gone"},
	}
	for _, h := range all {
		s.print(h)
	}
	require.Equal(t, `listening on [::]:7471
192.0.2.1:40000 connected, messages of 64 bytes
192.0.2.2:40000 refused: no
192.0.2.1:40000 ended, 3 messages answered
192.0.2.1:40000 ended, 3 messages answered: gone
`, stdout.String())
	stdout.Reset()
	s.quiet = true
	for _, h := range all {
		s.print(h)
	}
	require.Equal(t, "listening on [::]:7471\n", stdout.String())
	stdout.Reset()
	s.asJSON, s.quiet = true, false
	for _, h := range all {
		s.print(h)
	}
	golden.Compare(t, "testdata/listen.json", anyTime.ReplaceAllString(stdout.String(), `"time":"2026-01-02T03:04:05.678Z"`))
}

func TestWait(t *testing.T) {
	require.True(t, wait(t.Context(), -time.Second))
	require.True(t, wait(t.Context(), time.Nanosecond))
}
