// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// startWatch returns when the program watches.
func startWatch(t *testing.T, args ...string) *process.Process {
	t.Helper()
	w := process.Start(t, process.Cmd(t, "verbena", append([]string{"watch"}, args...)...))
	w.Says("verbena watch: watching .*\n")
	return w
}

// sees reads lines until those have come that end so, in any order.
func sees(t *testing.T, w *process.Process, ends ...string) {
	t.Helper()
	for len(ends) > 0 {
		line := w.Line()
		stamp, _, _ := strings.Cut(line, " ")
		_, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(t, err, "%q, waiting for %q", line, ends)
		ends = slices.DeleteFunc(ends, func(end string) bool { return strings.HasSuffix(line, end) })
	}
}

// succeeds waits for the end, before which the program has said nothing but
// that it watches.
func succeeds(t *testing.T, w *process.Process) {
	t.Helper()
	require.Zero(t, w.Wait())
	t.Log(w.Stdout())
	require.Equal(t, 1, strings.Count(w.Stderr(), "\n"), w.Stderr())
}

func TestWatchPorts(t *testing.T) {
	needGuest(t)
	w := startWatch(t, "-d", "rxe0")
	system(t, "ip link set rdma0 down")
	sees(t, w, " rxe0 1 port error")
	system(t, "ip link set rdma0 up")
	sees(t, w, " rxe0 1 port active")
	system(t, address6)
	sees(t, w, " rxe0 1 GID table change")
	w.Signal(os.Interrupt)
	succeeds(t, w)
	healthy(t, process.CmdPath(t, "verbena"))
}

// Devices come and go; one that is not to be watched is not told of.
func TestWatchDevices(t *testing.T) {
	needGuest(t)
	all, one := startWatch(t), startWatch(t, "-d", "rxe0")
	system(t, `
		ip link add rdma9 type veth peer name rdma10
		ip address add 203.0.113.1/24 dev rdma9
		ip link set rdma10 up
		ip link set rdma9 up
		rdma link add rxe9 type rxe netdev rdma9`)
	sees(t, all, " rxe9 - device added")
	system(t, "rdma link delete rxe9")
	sees(t, all, " rxe9 1 RDMA_CM_EVENT_DEVICE_REMOVAL", " rxe9 - device removed")
	system(t, "rdma link add rxe9 type rxe netdev rdma9") // of a name that was there
	sees(t, all, " rxe9 - device added")
	system(t, "ip link delete rdma9") // and the device with it
	sees(t, all, " rxe9 1 RDMA_CM_EVENT_DEVICE_REMOVAL", " rxe9 - device removed")
	for _, w := range []*process.Process{all, one} {
		w.Signal(os.Interrupt)
	}
	succeeds(t, all)
	succeeds(t, one)
	require.NotContains(t, one.Stdout(), "rxe9")
}

// A device to which no id can be bound, so that no event of rdma_cm tells of
// its removal, can be removed while it is watched.
func TestWatchDeviceWithoutID(t *testing.T) {
	needGuest(t)
	system(t, "mv /dev/infiniband/rdma_cm /dev/infiniband/away")
	t.Cleanup(func() { system(t, "mv /dev/infiniband/away /dev/infiniband/rdma_cm") })
	w := startWatch(t)
	system(t, `
		ip link add rdma9 type veth peer name rdma10
		rdma link add rxe9 type rxe netdev rdma9`)
	sees(t, w, " rxe9 - device added")
	system(t, "rdma link delete rxe9")
	sees(t, w, " rxe9 - device removed")
	system(t, "ip link delete rdma9")
	w.Signal(os.Interrupt)
	require.Zero(t, w.Wait())
	require.NotContains(t, w.Stdout(), "RDMA_CM_EVENT")
}

// With a number of events it ends by itself, and with JSON each line is an
// object.
func TestWatchCount(t *testing.T) {
	needGuest(t)
	w := startWatch(t, "-j", "-c", "2", "-d", "rxe0", "-d", "rxe9")
	system(t, "ip link set rdma0 down; ip link set rdma0 up;"+address6)
	for range 2 {
		var e struct {
			Time          time.Time
			Device, Event string
			Port          int
		}
		decoder := json.NewDecoder(bytes.NewBufferString(w.Line()))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&e))
		require.Equal(t, "rxe0", e.Device)
		require.Equal(t, 1, e.Port)
		require.NotEmpty(t, e.Event)
		require.False(t, e.Time.IsZero())
	}
	succeeds(t, w)
	healthy(t, process.CmdPath(t, "verbena"))
}
