// SPDX-License-Identifier: Apache-2.0

//go:build !race

package perf

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// A connection takes no more than it did: both ends, 100 calls of C, 442
// allocations, no descriptor and a goroutine. With one processor, these counts
// vary by a percent.
func TestConnectingCounts(t *testing.T) {
	d := testdevice.Require(t)
	if !testdevice.Soft() {
		t.Skip("counts what the device in user space takes")
	}
	cmd := process.Command(t, "connects", "rdmacm", d.IPv4.String(), "100", "3")
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	p := process.Run(t, cmd)
	require.Zero(t, p.Wait())
	var got connecting
	require.NoError(t, json.Unmarshal([]byte(p.Stdout()), &got))
	t.Logf("%+v", got)
	require.LessOrEqual(t, got.Calls, 105.0, "calls of C")
	require.LessOrEqual(t, got.Allocs, 465.0, "allocations")
	require.LessOrEqual(t, got.FDs, 0.1, "descriptors")
	require.LessOrEqual(t, got.Routines, 1.1, "goroutines")
}
