// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Close keeps the ID until the peer has answered, so that the system can repeat
// the message of the end. The peer hears of the end although the first two
// messages are lost.
func TestCloseKeepsTellingThePeer(t *testing.T) {
	d := needDevice(t)
	if !testdevice.Soft() {
		t.Skip("loses a message on the device in user space; TestCloseOverLossyLink does so between two hosts")
	}
	client, server := connect(t, d.IPv4, nil, nil)
	lost := testdevice.LoseDisconnects(t, 2)
	require.NoError(t, client.Close())
	require.ErrorIs(t, client.Shutdown(short(t)), context.DeadlineExceeded, "Close has given up telling the peer, which has not answered")
	cmtest.Take(t, lost, "a second message of the end")
	require.NoError(t, server.Wait(bounded(t)), "the peer has not heard of the end")
	require.NoError(t, client.Shutdown(bounded(t)), "the peer's answer has not arrived")
}
