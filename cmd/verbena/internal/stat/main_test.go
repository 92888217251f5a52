// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/ibverbs/stat"
)

var tested = programtest.Of(Program)

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "verbena stat", 2, map[string]string{
		"-x":       "unknown shorthand flag",
		"more":     `unexpected argument "more"`,
		"-w 0":     "expected a number from 1",
		"-c 1":     "-c without -w",
		"-r -w 1":  "-r and -w exclude each other",
		"-r -t":    "-r and -t exclude each other",
		"-w 1 -c ": "flag needs an argument",
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "verbena stat [-d device]", "-w, --watch seconds", "-s, --sysfs folder", "2^53")
}

// sysfs makes files under class/infiniband and returns what it is called.
func sysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	t.Setenv("VERBENA_DEVICE", "")
	sys := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(sys, "class"), 0o700))
	for name, text := range files {
		path := filepath.Join(sys, "class/infiniband", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	return sys
}

func card(t *testing.T) string {
	return sysfs(t, map[string]string{
		"mlx5_0/ports/1/state":                       "4: ACTIVE",
		"mlx5_0/ports/1/link_layer":                  "Ethernet",
		"mlx5_0/ports/1/counters/port_rcv_data":      "4611686018427387903",
		"mlx5_0/ports/1/hw_counters/out_of_sequence": "0",
		"mlx5_0/ports/1/hw_counters/unheard_of":      "9",
		"mlx5_0/ports/2/state":                       "1: DOWN",
		"mlx5_0/ports/3/hw_counters/np_cnp_sent":     "0",
		"efa_0/hw_counters/cmds_err":                 "2",
		"efa_0/ports/1/hw_counters/tx_bytes":         "12",
	})
}

const counterText = `
efa_0
  hw_counters  cmds_err  2  commands
efa_0 port 1, state unknown, link unknown
  hw_counters  tx_bytes  12  bytes

mlx5_0 port 1, ACTIVE, Ethernet
  counters     port_rcv_data  18446744073709551612  bytes
  hw_counters  unheard_of     9                     -
mlx5_0 port 2, DOWN, link unknown
  no counters
mlx5_0 port 3, state unknown, link unknown
  all counters are 0
`

func TestCounters(t *testing.T) {
	sys := card(t)
	status, stdout, stderr := tested.Run("-s " + sys)
	require.Zero(t, status, stderr)
	require.Equal(t, strings.TrimPrefix(counterText, "\n"), stdout)

	status, stdout, stderr = tested.Run("-v -d mlx5_0 -s " + sys)
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "  hw_counters  out_of_sequence  0 ")
	require.Contains(t, stdout, "packets  Packets received before one that is missing")
	require.Contains(t, stdout, "-        -\n", "what is unknown")
	require.NotContains(t, stdout, "efa_0")

	// The number has all of its digits.
	status, stdout, stderr = tested.Run("-j -d mlx5_0 -s " + sys)
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, `"value": 18446744073709551612,`)
	require.NotContains(t, stdout, "null")
	var back report
	require.NoError(t, json.Unmarshal([]byte(stdout), &back))
	devices, err := stat.Sysfs(sys).Devices()
	require.NoError(t, err)
	require.Equal(t, report{[]device{{Device: devices[1]}}}, back)
}

func TestNothing(t *testing.T) {
	sys := sysfs(t, nil)
	for args, want := range map[string]string{
		"-s " + sys:             "there is no RDMA device; verbena doctor finds out why",
		"-w 1 -s " + sys:        "there is no RDMA device",
		"-r -s " + sys:          "there is no RDMA device",
		"-s " + sys + "/what":   "no such file or directory",
		"-d what -s " + card(t): `there is no device "what"; verbena devices lists`,
	} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 1, status, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
	}
}

// fake has readings, one after the other, and then ends.
type fake struct {
	readings [][]device
	objects  stat.Resources
	end      func()
}

func (f *fake) devices(context.Context) ([]device, error) {
	if len(f.readings) == 0 {
		f.end()
		return nil, errors.New("interrupted")
	}
	d := f.readings[0]
	f.readings = f.readings[1:]
	return d, nil
}

func (f *fake) resources(context.Context) (stat.Resources, error) { return f.objects, nil }

func one(counters ...stat.Counter) []device {
	return []device{{Device: stat.Device{Name: "rxe0", Counters: []stat.Counter{}, Ports: []stat.Port{{Port: 1, Counters: counters}}}}}
}

func packets(name string, n uint64) stat.Counter {
	return stat.Counter{Group: stat.Hardware, Name: name, Value: n, Unit: stat.Packets}
}

func readings() [][]device {
	return [][]device{
		one(packets("rcvd_pkts", 10), packets("sent_pkts", 100), packets("send_err", 7)),
		one(packets("rcvd_pkts", 15), packets("sent_pkts", 100), packets("send_err", 2)),
		one(packets("rcvd_pkts", 15), packets("sent_pkts", 100), packets("send_err", 2)),
	}
}

const rateText = `
2000-01-01T00:00:02Z
  rxe0 port 1  hw_counters  rcvd_pkts  2.5  packets/s
  rxe0 port 1  hw_counters  send_err   new  packets
2000-01-01T00:00:04Z
  no change
`

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock begins in the year 2000
		local := time.Local
		time.Local = time.UTC
		defer func() { time.Local = local }()
		ctx, cancel := context.WithCancel(t.Context())
		var stdout bytes.Buffer
		source := &fake{readings: readings(), end: cancel}
		require.NoError(t, (&options{seconds: 2}).watch(ctx, program.Output{Stdout: &stdout}, source))
		require.Equal(t, strings.TrimPrefix(rateText, "\n"), stdout.String())
	})
	synctest.Test(t, func(t *testing.T) {
		var stdout bytes.Buffer
		source := &fake{readings: readings()}
		require.NoError(t, (&options{seconds: 2, count: 1, asJSON: true}).watch(t.Context(), program.Output{Stdout: &stdout}, source))
		require.Equal(t, `{"time":"2000-01-01T00:00:02Z","devices":[{"name":"rxe0","ports":[{"port":1,"state":"","link_layer":"","rate_bits_per_second":0,`+
			`"lifespan_nanoseconds":0,"counters":[`+
			`{"group":"hw_counters","name":"rcvd_pkts","value":15,"unit":"packets","per_second":2.5},`+
			`{"group":"hw_counters","name":"sent_pkts","value":100,"unit":"packets","per_second":0},`+
			`{"group":"hw_counters","name":"send_err","value":2,"unit":"packets"}]}],"counters":[]}]}`+"\n", stdout.String())
	})
	// What cannot be read is an error, and an interrupt while it waits is none.
	synctest.Test(t, func(t *testing.T) {
		require.ErrorContains(t, (&options{seconds: 1}).watch(t.Context(), program.Output{}, &fake{end: func() {}}), "interrupted")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		require.NoError(t, (&options{seconds: 1}).watch(ctx, program.Output{}, &fake{readings: readings()}))
	})
}

// objects are those of two threads of rping, of another process, and of the
// kernel.
func objects() stat.Resources {
	rping := func(thread int) stat.Owner { return stat.Owner{PID: 193, Program: "rping", Thread: thread} }
	other, kernel := stat.Owner{PID: 7}, stat.Owner{Kernel: "ib_core"}
	return stat.Resources{
		QueuePairs: []stat.QueuePair{
			{Device: "rxe0", Port: 1, Number: 1, Type: "GSI", State: "RTS", Owner: kernel},
			{Device: "rxe0", Port: 1, Number: 17, Peer: 18, Type: "RC", State: "RTS", PD: new(uint32(2)), Owner: rping(193)},
			{Device: "rxe1", Number: 3, Type: "UD", State: "RESET", PD: new(uint32(0)), Owner: other},
		},
		CompletionQueues: []stat.CompletionQueue{
			{Device: "rxe0", Number: new(uint32(0)), Size: 1023, Users: 2, Polling: "WORKQUEUE", Owner: kernel},
			{Device: "rxe0", Size: 63, Users: 2, Owner: rping(197)},
		},
		MemoryRegions: []stat.MemoryRegion{
			{Device: "rxe0", Number: new(uint32(0)), Length: 16, Owner: rping(193)},
			{
				Device: "rxe0", Number: new(uint32(1)), Length: 64, LKey: new(uint32(0x4f3)), RKey: new(uint32(0)), PD: new(uint32(2)),
				Owner: rping(193),
			},
		},
		ProtectionDomains: []stat.ProtectionDomain{{Device: "rxe0", Number: new(uint32(2)), Users: 5, Owner: rping(197)}},
		ConnectionIDs: []stat.ConnectionID{
			{
				Device: "rxe0", Port: 1, Number: new(uint32(0)), QueuePair: 17, Type: "RC", State: "CONNECT", PortSpace: "TCP",
				Source: netip.MustParseAddrPort("192.0.2.1:43273"), Dest: netip.MustParseAddrPort("192.0.2.1:7174"), Owner: rping(193),
			},
			{Device: "rxe0", State: "LISTEN", PortSpace: "TCP"},
		},
	}
}

const ownerText = `
DEVICE  PROCESS      QP  CQ  MR  BYTES  PD  CM_ID
rxe0    unknown      0   0   0   0      0   1
rxe0    [ib_core]    1   1   0   0      0   0
rxe0    rping (193)  1   1   2   80     1   1
rxe1    process 7    1   0   0   0      0   0
`

const objectText = `
QP  DEVICE  PORT  TYPE  STATE  PEER  PD  PROCESS
1   rxe0    1     GSI   RTS    -     -   [ib_core]
17  rxe0    1     RC    RTS    18    2   rping (193)

CQ  DEVICE  SIZE  USERS  POLLING    PROCESS
0   rxe0    1023  2      WORKQUEUE  [ib_core]
-   rxe0    63    2      -          rping (193)

MR  DEVICE  BYTES  LKEY   RKEY  PD  PROCESS
0   rxe0    16     -      -     -   rping (193)
1   rxe0    64     0x4f3  0x0   2   rping (193)

PD  DEVICE  USERS  PROCESS
2   rxe0    5      rping (193)

CM_ID  DEVICE  PORT  STATE    SPACE  QP  SOURCE           DESTINATION     PROCESS
0      rxe0    1     CONNECT  TCP    17  192.0.2.1:43273  192.0.2.1:7174  rping (193)
-      rxe0    -     LISTEN   TCP    -   -                -               unknown
`

func TestResources(t *testing.T) {
	for _, tt := range []struct {
		o    options
		want string
	}{
		{options{}, ownerText},
		{options{all: true, device: "rxe0"}, objectText},
	} {
		var stdout bytes.Buffer
		source := &fake{readings: [][]device{one()}, objects: objects()}
		require.NoError(t, tt.o.showResources(t.Context(), program.Output{Stdout: &stdout}, source))
		require.Equal(t, strings.TrimPrefix(tt.want, "\n"), stdout.String())
	}
	var stdout bytes.Buffer
	source := &fake{readings: [][]device{one()}, objects: objects()}
	require.NoError(t, (&options{asJSON: true}).showResources(t.Context(), program.Output{Stdout: &stdout}, source))
	require.Contains(t, stdout.String(), `"queue_pairs": [`)
	require.Contains(t, stdout.String(), `"protection_domain": 2,`)
	var back stat.Resources
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &back))
	require.Equal(t, objects(), back)
}
