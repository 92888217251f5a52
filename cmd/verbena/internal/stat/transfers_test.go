// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/stat"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/transfer"
)

// Rates name what does not answer, too.
func TestRatesOfStopped(t *testing.T) {
	var stdout bytes.Buffer
	stopped := device{Process: &stat.Owner{PID: 7}, Error: "the process does not answer"}
	require.NoError(t, (&options{transfers: true}).printRates(&stdout, reading{}, reading{devices: []device{stopped}}))
	_, rates, _ := strings.Cut(stdout.String(), "\n")
	require.Equal(t, "  an engine of process 7: the process does not answer\n", rates)
}

// What this process has moved is shown by peer and device.
func TestTransfers(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	if err := softroce.Use(softroce.Config{}); err != nil {
		t.Skip(err) // this program cannot call C
	}
	ctx := t.Context()
	server, err := transfer.New(transfer.Config{Publish: true})
	require.NoError(t, err)
	defer server.Close()
	_, err = server.Alloc(4096, transfer.RegionConfig{Name: "memory", Access: transfer.WriteAccess})
	require.NoError(t, err)
	ln, err := server.Listen(ctx, "127.0.0.1:0", transfer.ListenConfig{})
	require.NoError(t, err)
	client, err := transfer.New(transfer.Config{Publish: true})
	require.NoError(t, err)
	defer client.Close()
	for range 2 { // the counts of peers with one address are added up
		peer, err := client.Dial(ctx, ln.Addr().String(), transfer.DialConfig{})
		require.NoError(t, err)
		memory, err := peer.Region(ctx, "memory")
		require.NoError(t, err)
		batch := peer.NewBatch(1)
		require.NoError(t, batch.Write(memory, 0, make([]byte, 100)))
		require.NoError(t, batch.Submit(ctx))
		require.NoError(t, batch.Wait(ctx))
	}

	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	whose := fmt.Sprintf("%v of %.*s (%d)\n", ln.Addr(), len(comm)-1, comm, os.Getpid())
	// after returns the lines about what a title says.
	after := func(stdout, title string) string {
		_, rest, ok := strings.Cut(stdout, title)
		require.True(t, ok, "%s in %s", title, stdout)
		lines, _, _ := strings.Cut(rest, "\n\n")
		return lines
	}
	status, stdout, stderr := tested.Run("-t")
	require.Zero(t, status, stderr)
	require.Regexp(t, `  transfer +requests +2 +requests\n`, after(stdout, "peer "+whose))
	onDevice := after(stdout, "soft0 to "+whose)
	require.Regexp(t, `  transfer +connections +2 +-\n`, onDevice)
	require.Regexp(t, `  transfer +written_bytes +200 +bytes\n`, onDevice)
	require.NotContains(t, onDevice, "read_bytes", "it is 0")

	status, stdout, stderr = tested.Run("-t -v -d soft0")
	require.Zero(t, status, stderr)
	require.NotContains(t, stdout, "peer "+whose)
	require.Regexp(t, `read_bytes +0 +bytes +Bytes that were read`, after(stdout, "soft0 to "+whose))

	status, stdout, stderr = tested.Run("-t -j")
	require.Zero(t, status, stderr)
	var back report
	require.NoError(t, json.Unmarshal([]byte(stdout), &back))
	all := map[string]bool{}
	for _, d := range back.Devices {
		if d.Process.PID == os.Getpid() {
			all[d.Name+" "+d.Peer] = true
		}
	}
	require.True(t, all[" "+ln.Addr().String()] && all["soft0 "+ln.Addr().String()], "%v", all)

	status, stdout, stderr = tested.Run("-t -v -w 1 -c 1")
	require.Zero(t, status, stderr)
	require.Regexp(t, `  soft0 to \S+ of .* transfer +written_bytes +0\.0 +bytes/s\n`, stdout)
	require.NotContains(t, stdout, "requests_pending", "it may fall")

	// An engine of a process that is stopped is named.
	silent, err := net.Listen("unix", fmt.Sprintf("@verbena-transfer/%016x", rand.Uint64()))
	require.NoError(t, err)
	defer silent.Close()
	status, stdout, stderr = tested.Run("-t")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, fmt.Sprintf("an engine of process %d: the process does not answer\n", os.Getpid()))
	require.Contains(t, stdout, "peer "+whose)

	status, _, stderr = tested.Run("-t -d what")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, `no peer is connected by device "what"`)
}
