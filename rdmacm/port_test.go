// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

// The error says that the device could not send because its port is down, or
// because the connection's address is gone. Soft-RoCE has the same status for
// these as for a request that does not fit the queue pair.
func TestPortProblem(t *testing.T) {
	d := needDevice(t)
	if !strings.HasPrefix(d.Name, "soft") {
		t.Skip("needs a device whose port the test can bring down")
	}
	client, _ := connect(t, d.IPv4, nil, nil)
	says := func(status ibverbs.WCStatus) string {
		err := rdmacm.FailureOf(client, &ibverbs.WCError{Status: status})
		require.ErrorIs(t, err, status)
		return err.Error()
	}
	const op, protection = ibverbs.WCLocalQPOperation, ibverbs.WCLocalProtection
	usual := says(op)
	require.Contains(t, usual, op.Hint(), "nothing is wrong with the port")

	down := "port 1 of " + d.Name + " is "
	require.NoError(t, softroce.SetPort(false))
	defer func() { require.NoError(t, softroce.SetPort(true)) }()
	require.Contains(t, says(op), ": "+down)
	require.NotContains(t, says(op), op.Hint())
	require.NotContains(t, says(protection), down, "a status of another cause")
	require.NoError(t, softroce.SetPort(true))
	require.Equal(t, usual, says(op))

	local := client.LocalAddr().Addr()
	require.NoError(t, softroce.SetAddresses([]netip.Addr{netip.MustParseAddr("198.51.100.77")}))
	defer func() { require.NoError(t, softroce.SetAddresses(nil)) }()
	gone := d.Name + " does not have the address " + local.String() + " any more"
	require.Contains(t, says(op), ": "+gone)
	require.NotContains(t, says(protection), gone)
	require.NoError(t, softroce.SetAddresses(nil))
	require.Equal(t, usual, says(op))
}
