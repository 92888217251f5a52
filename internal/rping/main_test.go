package rping

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

func TestExitStatus(t *testing.T) {
	run := func(args ...string) (status int, stdout, stderr string) {
		var out, errs bytes.Buffer
		status = Main(args, &out, &errs)
		return status, out.String(), errs.String()
	}
	status, stdout, stderr := run("-h")
	require.Zero(t, status)
	require.Contains(t, stdout, "--size bytes        bytes of each ping, from 23 to 65535 (default 64)")
	require.Empty(t, stderr)

	for _, args := range [][]string{{"-c", "-a", "nobody.invalid"}, {"-s", "-a", "nobody.invalid"}} {
		status, stdout, stderr = run(args...)
		require.Equal(t, 1, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "nobody.invalid")
	}
}

func TestWithoutDevice(t *testing.T) {
	ch, err := rdmacm.NewEventChannel()
	if err == nil {
		require.NoError(t, ch.Close())
		t.Skip("this machine has RDMA")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, Main([]string{"-c", "-a", "192.0.2.1"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), err.Error())
	t.Log(stderr.String())
}
