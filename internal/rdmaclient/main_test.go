package rdmaclient

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

func TestParse(t *testing.T) {
	for args, want := range map[string]options{
		"":                     {"127.0.0.1", 7471},
		"-s host -p 7500":      {"host", 7500},
		"--server :: --port 1": {"::", 1},
	} {
		o := options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		require.Equal(t, want, o, args)
	}
}

func TestWrongArguments(t *testing.T) {
	for args, text := range map[string]string{
		"-x":       "unknown shorthand flag",
		"-p 0":     "expected a number from 1 to 65535",
		"-p 65536": "expected a number from 1 to 65535",
		"host":     "unexpected argument",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 1, Main(strings.Fields(args), &stdout, &stderr), args)
		require.Empty(t, stdout.String())
		require.Regexp(t, "^rdmaclient: .*; -h lists the flags\n$", stderr.String())
		require.Contains(t, stderr.String(), text, args)
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, Main([]string{"-h"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "-p, --port port")
	require.Empty(t, stderr.String())
}

func TestWithoutDevice(t *testing.T) {
	ch, err := rdmacm.NewEventChannel()
	if err == nil {
		require.NoError(t, ch.Close())
		t.Skip("this machine has RDMA")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, Main([]string{"-s", "192.0.2.1"}, &stdout, &stderr))
	require.Equal(t, "rdmaclient: start\n", stdout.String())
	require.Contains(t, stderr.String(), "rdmaclient: ")
}
