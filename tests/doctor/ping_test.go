// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Messages go to a server at every address and back, and the server ends when
// it is interrupted.
func TestPing(t *testing.T) {
	d := testdevice.Require(t)
	server := process.Start(t, process.Cmd(t, "verbena", "ping", "-l", "-p", "7241"))
	require.Equal(t, "listening on [::]:7241", server.Line())
	for _, host := range []string{d.IPv4.String(), d.IPv6.String()} {
		client := process.Run(t, process.Cmd(t, "verbena", "ping", "-p", "7241", "-c", "3", "-i", "0", host))
		require.Zero(t, client.Wait(), client.Stderr())
		require.Contains(t, client.Stdout(), "seq=3 time=")
		require.Contains(t, client.Stdout(), "3 messages sent, 3 answered, 0% lost")
		require.Regexp(t, "connected, messages of 64 bytes$", server.Line())
		require.Regexp(t, "ended, 3 messages answered$", server.Line())
	}
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait(), server.Stderr())
}
