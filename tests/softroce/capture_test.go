// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package softroce

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// record runs a server and a client with VERBENA_CAPTURE, and returns the file.
func record(t *testing.T, name, server, client string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "packets.pcap")
	network := fmt.Sprintf("capture %d %s", os.Getpid(), t.Name())
	start := func(args string) *process.Process {
		cmd := process.Cmd(t, name, strings.Fields(args)...)
		cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_NETWORK="+network, "VERBENA_CAPTURE="+path)
		return process.Start(t, cmd)
	}
	s := start(server)
	s.Eventually("listens", func() bool { return s.Ended() || ownnetwork.Listens(s.Pid(), network) })
	require.Zero(t, start(client).Wait())
	require.Zero(t, s.Wait())
	return path
}

// What programs send is dissected by tshark, where that is installed, without a
// malformed packet, and has the ICRC that the specification says, which is
// computed here in another way than the device does.
func TestCapturesOfPrograms(t *testing.T) {
	for name, tt := range map[string]struct {
		program, server, client string
		kinds                   []string // that tshark finds, among others
	}{
		"rping": {"rping", "-s -a 127.0.0.1 -S 5000 -V", "-c -a 127.0.0.1 -S 5000 -V -C 3", []string{
			"CM: ConnectRequest", "CM: ConnectReply", "CM: ReadyToUse", "CM: DisconnectRequest", "RC Send Only", "RC Acknowledge",
			"RC RDMA Read Request", "RC RDMA Read Response First", "RC RDMA Read Response Last", "RC RDMA Write First", "RC RDMA Write Last",
		}},
		"rping, IPv6": {"rping", "-s -a ::1", "-c -a ::1 -C 3", []string{"CM: ConnectRequest", "RC RDMA Write Only", "RC RDMA Read Request"}},
		"ucmatose": {"ucmatose", "-b 127.0.0.1 -c 2 -C 3 -S 10000", "-s 127.0.0.1 -c 2 -C 3 -S 10000", []string{
			"CM: ConnectRequest", "RC Send First", "RC Send Middle", "RC Send Last",
		}},
		"udaddy": {"udaddy", "-b 127.0.0.1 -c 2 -C 3 -S 500", "-s 127.0.0.1 -c 2 -C 3 -S 500", []string{
			"CM: ServiceIDResReq", "CM: ServiceIDResReqResp", "UD Send Only",
		}},
		"udaddy, IPv6": {"udaddy", "-b ::1 -f ipv6 -C 3 -S 500", "-s ::1 -C 3 -S 500", []string{"UD Send Only"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := record(t, tt.program, tt.server, tt.client)
			packets := read(t, path)
			require.NotEmpty(t, packets)
			var want []string
			for i, p := range packets {
				got := binary.LittleEndian.Uint32(p[len(p)-4:])
				require.Equal(t, icrc(t, p), got, "packet %d: % x", i, p)
				want = append(want, fmt.Sprintf("0x%08x", binary.BigEndian.Uint32(p[len(p)-4:])))
			}

			tshark, err := exec.LookPath("tshark")
			if err != nil {
				t.Log("tshark is not here, and does not dissect them")
				return
			}
			// RoCE has no checksum of UDP, of which tshark thinks as an error with IPv6.
			out, err := exec.Command(tshark, "-r", path, "-o", "udp.ignore_ipv6_zero_checksum:TRUE", "-T", "fields", "-e", "infiniband.invariant.crc", "-e", "_ws.malformed", "-e",
				"_ws.expert.severity", "-e", "_ws.col.Info").CombinedOutput()
			require.NoError(t, err, "%s", out)
			var found []string
			for line := range strings.Lines(string(out)) {
				fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
				if len(fields) < 4 {
					continue // what tshark says of being root
				}
				found = append(found, fields[0])
				require.Empty(t, fields[1], line)
				if fields[2] != "" {
					severity, err := strconv.Atoi(strings.Split(fields[2], ",")[0])
					require.NoError(t, err)
					require.Less(t, severity, 0x600000, "a warning: %s", line)
				}
			}
			require.Equal(t, want, found, "%s", out)
			for _, kind := range tt.kinds {
				require.Contains(t, string(out), kind)
			}
		})
	}
}

// read returns the packets of a file, from the IP header on.
func read(t *testing.T, path string) (packets [][]byte) {
	t.Helper()
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Greater(t, len(file), 24)
	for rest := file[24:]; len(rest) > 0; {
		size := int(binary.NativeEndian.Uint32(rest[8:]))
		require.GreaterOrEqual(t, len(rest), 16+size)
		packets = append(packets, rest[16:16+size])
		rest = rest[16+size:]
	}
	return packets
}

// icrc computes the ICRC of a packet of RoCE version 2: a CRC-32 of eight bytes
// of ones, for the header that there is not, and of the packet with ones for
// all that may change on the way.
func icrc(t *testing.T, packet []byte) uint32 {
	t.Helper()
	p := slices.Clone(packet[:len(packet)-4])
	var changing []int
	udp := 0
	switch p[0] >> 4 {
	case 4:
		udp = int(p[0]&15) * 4
		changing = []int{1, 8, 10, 11} // type of service, TTL, checksum
		require.EqualValues(t, 17, p[9])
		require.EqualValues(t, len(packet), binary.BigEndian.Uint16(p[2:]))
	case 6:
		udp = 40
		p[0] |= 0x0F // traffic class and flow label
		changing = []int{1, 2, 3, 7}
		require.EqualValues(t, 17, p[6])
		require.EqualValues(t, len(packet)-40, binary.BigEndian.Uint16(p[4:]))
	default:
		require.Fail(t, "no packet of IP", "% x", p)
	}
	require.EqualValues(t, 4791, binary.BigEndian.Uint16(p[udp+2:]))
	require.EqualValues(t, len(packet)-udp, binary.BigEndian.Uint16(p[udp+4:]))
	changing = append(changing, udp+6, udp+7, udp+8+4) // the checksum of UDP, and what BTH has for congestion
	for _, i := range changing {
		p[i] = 0xFF
	}
	return crc32.ChecksumIEEE(append(slices.Repeat([]byte{0xFF}, 8), p...))
}
