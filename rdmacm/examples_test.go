package rdmacm_test

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// The examples that have both ends do what they say. Their address is that of
// tests/vm's guest.
func TestExample(t *testing.T) {
	d := needDevice(t)
	if d.IPv4.String() != "192.0.2.1" {
		t.Skip("the example's address is not this machine's")
	}
	require.Equal(t, "hello over RDMA\n", printed(t, Example))
	require.Equal(t, "hello yourself\n", printed(t, ExampleDialDatagram))
	require.Equal(t, "to all members, from 192.0.2.1\n", printed(t, ExampleJoinGroup))
	// The client closes its end in its own time.
	require.Eventually(t, func() bool { return len(ibverbs.OpenObjects()) == 0 }, patience, time.Millisecond)
}

// printed returns what f prints.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	stdout := os.Stdout
	os.Stdout = w
	f()
	os.Stdout = stdout
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}
