// Package programtest tests what all programs do alike.
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

// Run runs it in this process.
func (m Main) Run(args string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = m(strings.Fields(args), &out, &errs)
	return status, out.String(), errs.String()
}

// WrongArguments checks that the program of that name refuses arguments, with a
// status and with the text that stands for each.
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

// WithoutDevice checks that the program says what is wrong on a machine without
// RDMA, and is skipped on others.
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
