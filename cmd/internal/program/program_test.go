// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// values are what the flags of the tests' program set.
type values struct {
	verbose bool
	name    string
	size    int
	timeout time.Duration
}

func newProgram(run func(context.Context, Output) error) (*Program, *values) {
	v := &values{size: 64, timeout: 2 * time.Second}
	return &Program{
		Name: "probe", Usage: "probe [-v] [-S size]", Text: "Probes.", Run: run,
		Flags: func(f *Flags) {
			f.BoolVarP(&v.verbose, "verbose", "v", false, "say more")
			f.StringVarP(&v.name, "name", "n", "", "`word` to say")
			f.Number(&v.size, "size", "S", 1, 100, "`bytes` of each")
			f.Milliseconds(&v.timeout, "timeout", "t", "how long it may take")
		},
	}, v
}

// An error may have an exit status of its own, also beside others.
func TestFailure(t *testing.T) {
	for _, err := range []error{Failure(3, errors.New("alone")), errors.Join(errors.New("first"), Failure(3, errors.New("alone")))} {
		p, _ := newProgram(func(context.Context, Output) error { return err })
		var stdout, stderr bytes.Buffer
		require.Equal(t, 3, p.Main(nil, &stdout, &stderr))
		require.Contains(t, stderr.String(), "alone\n")
	}
}

func succeed(context.Context, Output) error { return nil }

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		args string
		want values
	}{
		{"", values{size: 64, timeout: 2 * time.Second}},
		{"-vS100 -n x", values{true, "x", 100, 2 * time.Second}},
		{"-S 1 -nx -t 1", values{false, "x", 1, time.Millisecond}},
		{"--size=2 --timeout 1048576 -S 3", values{size: 3, timeout: 1048576 * time.Millisecond}},
	} {
		p, v := newProgram(succeed)
		require.NoError(t, p.Parse(strings.Fields(tt.args)))
		require.Equal(t, tt.want, *v, tt.args)
	}
}

func TestParseFails(t *testing.T) {
	for args, text := range map[string]string{
		"-x":         "unknown shorthand flag: 'x'",
		"-vx1":       "unknown shorthand flag: 'x'",
		"more":       `unexpected argument "more"`,
		"-S":         "flag needs an argument",
		"-S 0":       "expected a number from 1 to 100",
		"-S 101":     "expected a number from 1 to 100",
		"-S many":    "expected a number from 1 to 100",
		"-t 0":       "expected milliseconds from 1 to 1048576",
		"-t 1048577": "expected milliseconds from 1 to 1048576",
	} {
		p, _ := newProgram(succeed)
		require.ErrorContains(t, p.Parse(strings.Fields(args)), text, "%q", args)
	}
}

func TestOperands(t *testing.T) {
	p, v := newProgram(succeed)
	var host, port string
	p.Operands = []*string{&host, &port}
	require.NoError(t, p.Parse([]string{"-v"}))
	require.Empty(t, host)
	require.NoError(t, p.Parse([]string{"-v", "host", "-S", "7"}))
	require.Equal(t, "host", host)
	require.Empty(t, port)
	require.Equal(t, 7, v.size)
	require.NoError(t, p.Parse([]string{"host", "-S", "8", "port"}))
	require.Equal(t, "port", port)
	require.Equal(t, 8, v.size)
	require.ErrorContains(t, p.Parse([]string{"host", "port", "more"}), `unexpected argument "more"`)
	require.EqualError(t, p.Parse([]string{"-v", ""}), "argument 1 is empty")
	require.EqualError(t, p.Parse([]string{"host", ""}), "argument 2 is empty")
}

func FuzzParse(f *testing.F) {
	for _, args := range []string{"-v", "-vS10 -n x", "--size=7 -t 3", "-S", "-v\xff", "- -- -h"} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, args string) {
		p, v := newProgram(succeed)
		if err := p.Parse(strings.Fields(args)); err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.True(t, 1 <= v.size && v.size <= 100, v.size)
		require.True(t, time.Millisecond <= v.timeout && v.timeout <= maxMilliseconds*time.Millisecond, v.timeout)
	})
}

func TestExitStatus(t *testing.T) {
	interrupt := func(ctx context.Context, _ Output) error {
		this, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, this.Signal(os.Interrupt))
		<-ctx.Done()
		return ctx.Err()
	}
	for _, tt := range []struct {
		name, args     string
		run            func(context.Context, Output) error
		misused        int
		status         int
		stdout, stderr string
	}{
		{"good", "-v", func(_ context.Context, out Output) error { out.Printf("%d\n", 7); return nil }, 0, 0, "7\n", ""},
		{"failed", "", func(context.Context, Output) error { return errors.New("no luck") }, 0, 1, "", "probe: no luck\n"},
		{"misused", "", func(context.Context, Output) error { return Misuse("-v without -%c", 'n') }, 0, 1, "", "probe: -v without -n; -h lists the flags\n"},
		{"misused, as C says", "", func(context.Context, Output) error { return Misuse("bad") }, 22, 22, "", "probe: bad; -h lists the flags\n"},
		{"wrong flag", "more", succeed, 22, 22, "", "probe: unexpected argument \"more\"; -h lists the flags\n"},
		{"interrupted", "", interrupt, 0, 130, "", "probe: interrupted\n"},
		{"ended by an interrupt", "", func(ctx context.Context, out Output) error { _ = interrupt(ctx, out); return nil }, 0, 0, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _ := newProgram(tt.run)
			p.Misused = tt.misused
			var stdout, stderr bytes.Buffer
			require.Equal(t, tt.status, p.Main(strings.Fields(tt.args), &stdout, &stderr))
			require.Equal(t, tt.stdout, stdout.String())
			require.Equal(t, tt.stderr, stderr.String())
		})
	}
}

// What cannot be written is a failure, said once.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	const text = "write /dev/full: no space left on device\n"
	prints := func(_ context.Context, out Output) error { out.Printf("%d\n", 7); return nil }
	fails := func(_ context.Context, out Output) error { return out.JSON(7) }
	several := Commands{Name: "several", Version: func() string { return "1" }, All: []Command{{
		Name: "probe", Program: func() *Program { p, _ := newProgram(prints); return p },
	}}}
	for args, want := range map[string]string{
		"probe": "probe", "probe -h": "probe", "--version": "several", "-h": "several", "help": "several",
	} {
		var stderr bytes.Buffer
		require.Equal(t, 1, several.Main(strings.Fields(args), full, &stderr), args)
		require.Equal(t, want+": "+text, stderr.String(), args)
	}
	var stderr bytes.Buffer
	p, _ := newProgram(fails)
	require.Equal(t, 1, p.Main(nil, full, &stderr))
	require.Equal(t, "probe: "+text, stderr.String())
}

// A Run that the kernel holds does not hold the program.
func TestInterruptedButHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		p, _ := newProgram(func(context.Context, Output) error { <-held; return nil })
		ctx, interrupt := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.runUntil(ctx, Output{}) }()
		time.Sleep(time.Hour)
		require.Empty(t, ended, "until it is interrupted")
		interrupt()
		require.ErrorIs(t, <-ended, errLingers)
		close(held)
	})
}

func TestIsTerminal(t *testing.T) {
	require.False(t, IsTerminal(&bytes.Buffer{}))
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	require.False(t, IsTerminal(null))
}

func TestSeconds(t *testing.T) {
	var d time.Duration
	flags := newFlags("probe")
	flags.Seconds(&d, "wait", "w", time.Millisecond, "how long")
	require.NoError(t, flags.Parse([]string{"-w", "0.25"}))
	require.Equal(t, 250*time.Millisecond, d)
	for _, wrong := range []string{"0", "-1", "NaN", "Inf", "x", "3000000000"} {
		require.ErrorContains(t, flags.Parse([]string{"-w", wrong}), "expected seconds from 0.001 to 2147483647", wrong)
	}
}

func TestJSON(t *testing.T) {
	var on bool
	flags := newFlags("probe")
	flags.JSON(&on)
	require.NoError(t, flags.Parse([]string{"-j"}))
	require.True(t, on)
	var stdout bytes.Buffer
	require.NoError(t, Output{Stdout: &stdout}.JSON(map[string]int{"a": 1}))
	require.Equal(t, "{\n  \"a\": 1\n}\n", stdout.String())
}

func TestHelp(t *testing.T) {
	p, _ := newProgram(succeed)
	var stdout, stderr bytes.Buffer
	require.Zero(t, p.Main([]string{"-h"}, &stdout, &stderr))
	require.Empty(t, stderr.String())
	require.Equal(t, `probe [-v] [-S size]

  -v, --verbose      say more
  -n, --name word    word to say
  -S, --size bytes   bytes of each, from 1 to 100 (default 64)
  -t, --timeout ms   how long it may take (default 2000)

Probes.
`, stdout.String())
}

func TestServer(t *testing.T) {
	for args, want := range map[string]Server{
		"":                     {"", 7471},
		"-s host -p 7500":      {"host", 7500},
		"--server :: --port 1": {"::", 1},
	} {
		var s Server
		p := Program{Name: "client", Flags: s.Add}
		require.NoError(t, p.Parse(strings.Fields(args)))
		require.Equal(t, want, s, args)
		require.Equal(t, want.Address != "", s.Check() == nil, args)
	}
	require.Equal(t, "7471", (&Server{Port: 7471}).Service())
}

func TestFramed(t *testing.T) {
	var stdout bytes.Buffer
	out := Output{Stdout: &stdout}
	require.NoError(t, out.Framed("name", func() error { out.Printf("work\n"); return nil }))
	require.Equal(t, "name: start\nwork\nname: end 0\n", stdout.String())
	stdout.Reset()
	failed := errors.New("failed")
	require.Equal(t, failed, out.Framed("name", func() error { return failed }))
	require.Equal(t, "name: start\n", stdout.String())
}
