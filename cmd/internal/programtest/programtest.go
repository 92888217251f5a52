// SPDX-License-Identifier: Apache-2.0

// Package programtest tests what all programs have in common.
package programtest

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// Main is a program's main function.
type Main func(args []string, stdout, stderr io.Writer) int

// Of returns the main function of the program or the commands that make
// returns.
func Of[P interface {
	Main(args []string, stdout, stderr io.Writer) int
}](newProgram func() P) Main {
	return func(args []string, stdout, stderr io.Writer) int { return newProgram().Main(args, stdout, stderr) }
}

// Run runs the program in this process.
func (m Main) Run(args string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = m(strings.Fields(args), &out, &errs)
	return status, out.String(), errs.String()
}

// WrongArguments checks that the program with the given name refuses arguments.
// wrong maps arguments to the error text. status is the expected exit status.
func (m Main) WrongArguments(t *testing.T, name string, status int, wrong map[string]string) {
	t.Helper()
	for args, text := range wrong {
		got, stdout, stderr := m.Run(args)
		require.Equal(t, status, got, "%q", args)
		require.Empty(t, stdout, "%q", args)
		require.Regexp(t, "^"+name+": .*; -h lists the flags\n$", stderr)
		require.Contains(t, stderr, text, "%q", args)
	}
}

// WrongPorts holds wrong arguments for programs that have -p and no operands.
var WrongPorts = map[string]string{
	"-x":       "unknown shorthand flag",
	"-p 0":     "expected a number from 1 to 65535",
	"-p 65536": "expected a number from 1 to 65535",
	"host":     "unexpected argument",
}

// WrongKinds holds wrong arguments for rdmaxclient and rdmaxserver.
var WrongKinds = map[string]string{"-c u": "expected r or x", "-c": "flag needs an argument"}

// WrongServer checks that the client with the given name refuses the arguments
// in WrongPorts, and arguments without the server's address.
func (m Main) WrongServer(t *testing.T, name string) {
	t.Helper()
	m.WrongArguments(t, name, 1, WrongPorts)
	m.WrongArguments(t, name, 1, map[string]string{"": "-s is missing", "-p 7471": "-s is missing"})
}

// Help checks that -h prints texts.
func (m Main) Help(t *testing.T, texts ...string) {
	t.Helper()
	status, stdout, stderr := m.Run("-h")
	require.Zero(t, status)
	require.Empty(t, stderr)
	for _, text := range append(texts, "xample: ") {
		require.Contains(t, stdout, text)
	}
}

// WithoutDevice checks the error that the program prints on a machine without
// RDMA. The test is skipped on other machines.
func (m Main) WithoutDevice(t *testing.T, name string, lines ...string) {
	t.Helper()
	ch, err := rdmacm.NewEventChannel()
	if err == nil {
		require.NoError(t, ch.Close())
		t.Skip("this machine has RDMA")
	}
	for _, args := range lines {
		status, _, stderr := m.Run(args)
		require.Equal(t, 1, status, "%q", args)
		require.Contains(t, stderr, name+": ", "%q", args)
	}
}
