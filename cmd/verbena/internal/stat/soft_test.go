// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

// The device in user space is shown for each process, here this one. At the
// test's begin, the process does not use it.
func TestUserSpace(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	status, _, stderr := tested.Run("")
	require.Equal(t, 1, status)
	require.Equal(t, "verbena stat: no process uses the device in user space\n", stderr)

	if err := softroce.Use(softroce.Config{}); err != nil {
		t.Skip(err) // this program cannot call C
	}
	device, err := ibverbs.Open("")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cq.Close()) })
	qp, err := pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, SendQueue: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })

	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	shown := fmt.Sprintf("%.*s (%d)", len(comm)-1, comm, os.Getpid())
	status, stdout, stderr := tested.Run("-v")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "soft0 port 1 of "+shown+", ACTIVE, Ethernet\n")
	require.Contains(t, stdout, "  softroce  packets_sent ")

	status, stdout, stderr = tested.Run("-j")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, fmt.Sprintf(`"pid": %d,`, os.Getpid()))

	status, stdout, stderr = tested.Run("-r -v")
	require.Zero(t, status, stderr)
	require.Regexp(t, fmt.Sprintf(`(?m)^%d +soft0 +1 +RC +RESET +- +- +\S+ \(%d\)$`, qp.Num(), os.Getpid()), stdout)

	status, stdout, stderr = tested.Run("-w 1 -c 1")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "  no change\n")
}
