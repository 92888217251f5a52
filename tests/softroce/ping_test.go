// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package softroce

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// startVerbena starts it on the device in user space.
func startVerbena(t *testing.T, args string) *process.Process {
	t.Helper()
	cmd := process.Cmd(t, "verbena", strings.Fields(args)...)
	cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft")
	return process.Start(t, cmd)
}

// Clients ping a server, which prints the clients that come and go, until it is
// interrupted.
func TestPing(t *testing.T) {
	server := startVerbena(t, "ping -l -p 7231 127.0.0.1")
	require.Equal(t, "listening on 127.0.0.1:7231", server.Line())

	client := startVerbena(t, "ping -p 7231 -c 3 -i 0 -s 100 127.0.0.1")
	require.Zero(t, client.Wait())
	require.Regexp(t, `^PING 127.0.0.1:7231 from 127.0.0.1: messages of 100 bytes
100 bytes from 127.0.0.1: seq=1 time=\d+\.\d{3} ms
100 bytes from 127.0.0.1: seq=2 time=\d+\.\d{3} ms
100 bytes from 127.0.0.1: seq=3 time=\d+\.\d{3} ms

--- 127.0.0.1 ping statistics ---
3 messages sent, 3 answered, 0% lost, time \d+ ms
rtt min/avg/max/stdev = [\d./]+ ms
$`, client.Stdout())
	require.Empty(t, client.Stderr())
	require.Regexp(t, `^127.0.0.1:\d+ connected, messages of 100 bytes$`, server.Line())
	require.Regexp(t, `^127.0.0.1:\d+ ended, 3 messages answered$`, server.Line())

	client = startVerbena(t, "ping -p 7231 -j -i 0 127.0.0.1") // until it is interrupted
	first := client.Line()
	client.Signal(os.Interrupt)
	require.Zero(t, client.Wait())
	var message struct {
		Seq, Size int
		RTT       float64 `json:"rtt_us"`
	}
	require.NoError(t, json.Unmarshal([]byte(first), &message))
	require.Equal(t, 1, message.Seq)
	require.Equal(t, 64, message.Size)
	require.Positive(t, message.RTT)
	lines := strings.Split(strings.TrimSpace(client.Stdout()), "\n")
	var last struct {
		Summary struct {
			Sent, Answered int
			Mean           float64 `json:"avg_us"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	require.Equal(t, len(lines)-1, last.Summary.Sent)
	require.Equal(t, last.Summary.Sent, last.Summary.Answered)
	require.Positive(t, last.Summary.Mean)

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())

	client = startVerbena(t, "ping -p 7231 127.0.0.1")
	require.Equal(t, 1, client.Wait())
	require.Contains(t, client.Stderr(), "does verbena ping -l run there?")
}

// Messages are lost while there is no server, and answered when there is one
// again.
func TestPingLost(t *testing.T) {
	server := startVerbena(t, "ping -l -c 2 -p 7232 127.0.0.1")
	require.Equal(t, "listening on 127.0.0.1:7232", server.Line())
	client := startVerbena(t, "ping -p 7232 -i 0.05 127.0.0.1")
	client.Prints("seq=2 time=")
	server.Kill()
	client.Prints("seq=[0-9]+ lost: ")
	server = startVerbena(t, "ping -l -c 1 -p 7232 127.0.0.1")
	client.Prints(`lost: .*\n64 bytes from `)
	client.Signal(os.Interrupt)
	require.Zero(t, client.Wait())
	require.Contains(t, client.Stdout(), "% lost, time ")
	require.NotContains(t, client.Stdout(), " 0% lost")
	require.Zero(t, server.Wait(), "after its only client")
}

// What is no ping is told so, at either end.
func TestPingOfOthers(t *testing.T) {
	server := startRping(t, "-s -a 127.0.0.1 -p 7233 -P")
	server.Eventually("listens", func() bool { return server.Ended() || stat(t, server.Pid()) != nil })
	client := startVerbena(t, "ping -p 7233 127.0.0.1")
	require.Equal(t, 1, client.Wait())
	server.Kill()

	server = startVerbena(t, "ping -l -p 7234 127.0.0.1")
	require.Equal(t, "listening on 127.0.0.1:7234", server.Line())
	client = startRping(t, "-c -a 127.0.0.1 -p 7234 -C 1")
	require.NotZero(t, client.Wait())
	require.Regexp(t, `refused: the client is not verbena ping`, server.Line())
}
