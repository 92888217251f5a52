// SPDX-License-Identifier: Apache-2.0

package soft

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/internal/testutil/golden"
	"github.com/verbena-go/verbena/softroce"
)

// What is printed of processes, as text and as JSON.
func TestStatOutput(t *testing.T) {
	server := softroce.Process{PID: 4711, Program: "ib_write_bw", Network: "a b"}
	d := softroce.Device{
		Name: "soft0", GUID: "0123:4567:89ab:cdef", State: "active",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
	}
	d.Objects.Contexts, d.Objects.ProtectionDomains, d.Objects.MemoryRegions = 1, 2, 3
	d.Objects.MemoryWindows, d.Objects.AddressHandles, d.Objects.CompletionQueues, d.Objects.SharedReceiveQueues = 4, 5, 6, 7
	d.Counters.PacketsSent, d.Counters.PacketsReceived = 1000, 900
	d.Counters.PacketsSentAgain, d.Counters.Timeouts, d.Counters.SequenceErrors = 10, 9, 8
	d.Counters.PacketsMarked, d.Counters.NotificationsSent, d.Counters.NotificationsReceived = 5, 4, 3
	d.Counters.ReceiversNotReady, d.Counters.MissedAnswers = 7, 6
	connected := softroce.QueuePair{
		Number: 0x10011, Type: "RC", State: "RTS", Peer: &softroce.Peer{Address: netip.MustParseAddr("192.0.2.2"), Number: 0x2ffff},
	}
	connected.PacketsSentAgain, connected.Timeouts, connected.SequenceErrors = 1, 2, 3
	connected.ReceiversNotReady, connected.MissedAnswers = 4, 5
	d.QueuePairs = []softroce.QueuePair{connected, {Number: 0x10012, Type: "UD", State: "INIT"}}
	second := softroce.Device{
		Name: "soft1", GUID: "0123:4567:89ab:cdee", State: "active", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, QueuePairs: []softroce.QueuePair{},
	}
	server.Devices = []softroce.Device{d, second}
	idle := softroce.Process{PID: 4712, Program: "rping", Devices: []softroce.Device{{
		Name: "soft0", GUID: "0000:0000:0000:0001", State: "down", Addresses: []netip.Addr{}, QueuePairs: []softroce.QueuePair{},
	}}}
	all := []softroce.Process{server, idle, {PID: 4713, Error: "it does not answer"}}

	for name, asJSON := range map[string]bool{"stat.txt": false, "stat.json": true} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, printAll(program.Output{Stdout: &b}, all, asJSON))
			golden.Compare(t, filepath.Join("testdata", name), b.String())
		})
	}
}

// The command says so if there is no process. JSON has an empty list.
func TestPrintNothing(t *testing.T) {
	var out, errors bytes.Buffer
	require.NoError(t, printAll(program.Output{Stdout: &out, Stderr: &errors}, nil, false))
	require.Empty(t, out.String())
	require.Equal(t, "no process uses the device in user space\n", errors.String())

	errors.Reset()
	require.NoError(t, printAll(program.Output{Stdout: &out, Stderr: &errors}, []softroce.Process{}, true))
	require.Equal(t, "[]\n", out.String())
	require.Empty(t, errors.String())
}
