// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rcopy", 1, map[string]string{
		"-x":               "unknown shorthand flag",
		"-p 0":             "expected a number from 1 to 65535",
		"file":             "the server is missing",
		"file :copy":       "the server is missing",
		"file host more":   `unexpected argument "more"`,
		"-p 1 file":        "the server is missing",
		"-b 192.0.2.1 a :": "the server is missing",
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "-p, --port port      port of the server, from 1 to 65535 (default 7427)")
}

func TestParseTarget(t *testing.T) {
	for target, want := range map[string][2]string{
		"host":                      {"host", ""},
		"host:":                     {"host", ""},
		"host:copy":                 {"host", "copy"},
		"host:/a:b":                 {"host", "/a:b"},
		"192.0.2.1:/tmp/copy":       {"192.0.2.1", "/tmp/copy"},
		"2001:db8::1":               {"2001:db8::1", ""},
		"fe80::1%eth0":              {"fe80::1%eth0", ""},
		"[2001:db8::1]":             {"2001:db8::1", ""},
		"[2001:db8::1]:copy":        {"2001:db8::1", "copy"},
		"[fe80::1%eth0]:/tmp/a:b]c": {"fe80::1%eth0", "/tmp/a:b]c"},
		"[2001":                     {"[2001", ""},
		"":                          {"", ""},
		":copy":                     {"", "copy"},
	} {
		server, destination := parseTarget(target)
		require.Equal(t, want, [2]string{server, destination}, target)
	}
}

// What is wrong with the source is said before anybody connects.
func TestBadSource(t *testing.T) {
	folder := t.TempDir()
	for source, text := range map[string]string{
		filepath.Join(folder, "none"): "no such file",
		folder:                        "is not a regular file",
	} {
		status, stdout, stderr := tested.Run(source + " 192.0.2.1")
		require.Equal(t, 1, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, text)
	}
}

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rcopy", "", "main_test.go 192.0.2.1", "-p 7428 main_test.go 192.0.2.1:copy")
}
