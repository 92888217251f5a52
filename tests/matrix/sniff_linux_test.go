// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// sniffer keeps the first packets of an interface.
type sniffer struct {
	end    atomic.Bool
	done   chan struct{}
	frames [][]byte
}

// mostFrames is how many packets are kept: tshark takes its time in the VM.
// Those that follow cost nothing.
const mostFrames = 2000

// sniff begins to keep the packets of an interface.
func sniff(t *testing.T, name string) *sniffer {
	t.Helper()
	link, err := net.InterfaceByName(name)
	require.NoError(t, err)
	const all = syscall.ETH_P_ALL << 8 // in network order
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, all)
	require.NoError(t, err)
	require.NoError(t, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 64<<20))
	require.NoError(t, syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 100_000}))
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	s := &sniffer{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer syscall.Close(fd)
		b := make([]byte, 1<<17)
		for len(s.frames) < mostFrames {
			n, _, err := syscall.Recvfrom(fd, b, 0)
			switch {
			case err == nil:
				s.frames = append(s.frames, bytes.Clone(b[:n]))
			case err != nil && s.end.Load():
				return
			}
		}
	}()
	return s
}

// check ends the keeping. The ICRC of each packet must be right as it is on the
// wire, and tshark must understand it.
func (s *sniffer) check(t *testing.T) {
	t.Helper()
	s.end.Store(true)
	<-s.done
	file := binary.LittleEndian.AppendUint32(nil, 0xA1B2C3D4)
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	file = binary.LittleEndian.AppendUint32(file, 1<<17)
	file = binary.LittleEndian.AppendUint32(file, 1) // Ethernet
	var packets, numbered int
	for _, frame := range s.frames {
		covered, icrc := onRoCE(frame)
		if covered == nil {
			continue
		}
		packets++
		if covered[8]>>4 == 4 && (covered[12] != 0 || covered[13] != 0) {
			numbered++
		}
		require.Equal(t, crc32.ChecksumIEEE(covered), icrc, "packet %d: %x", packets, frame)
		file = append(file, make([]byte, 8)...) // no time
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = append(file, frame...)
	}
	require.Positive(t, packets)
	t.Logf("%d packets, %d with an identification", packets, numbered)
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		return
	}
	name := filepath.Join(t.TempDir(), "wire.pcap")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	out, err := exec.Command(tshark, "-r", name, "-T", "fields", "-e", "frame.protocols", "-e", "_ws.malformed", "-e", "_ws.col.Info").Output()
	require.NoError(t, err)
	require.Equal(t, packets, strings.Count(string(out), "\n"))
	for line := range strings.Lines(string(out)) {
		require.True(t, understood(line), line)
	}
}

// understood reports whether tshark has found the headers of a packet to be
// right. It takes what is in many a payload for another protocol, and for a
// malformed packet of that.
func understood(line string) bool {
	protocols, rest, _ := strings.Cut(line, "\t")
	malformed, _, _ := strings.Cut(rest, "\t")
	return strings.Contains(protocols, ":infiniband") && !strings.Contains(malformed, ": IB]") && !strings.Contains(malformed, ": InfiniBand]")
}

func TestUnderstood(t *testing.T) {
	for line, want := range map[string]bool{
		"eth:ethertype:ip:udp:infiniband:data\t\tRC Send First QP=0x000011":                                                     true,
		"eth:ethertype:ip:udp:infiniband:rpcordma\t[Malformed Packet: RPCoRDMA],_ws.malformed\tRC Send Only [Malformed Packet]": true,
		"eth:ethertype:ip:udp:infiniband\t[Malformed Packet: IB],_ws.malformed\tRC RDMA Write Only [Malformed Packet]":          false,
		"eth:ethertype:ip:udp:infiniband\t[Malformed Packet: InfiniBand]\tRC RDMA Write Only":                                   false,
		"eth:ethertype:ip:udp:data\t\t50000 → 4791 Len=20":                                                                      false,
	} {
		require.Equal(t, want, understood(line), line)
	}
}

// onRoCE returns what the ICRC of a packet of RoCE version 2 covers, and the
// ICRC; nothing of another packet.
func onRoCE(frame []byte) (covered []byte, icrc uint32) {
	if len(frame) < 14 {
		return nil, 0
	}
	ip := bytes.Clone(frame[14:])
	var headers int
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == 0x0800 && len(ip) > 28 && ip[9] == syscall.IPPROTO_UDP:
		headers = 20
		ip = ip[:binary.BigEndian.Uint16(ip[2:])]
		ip[1], ip[8], ip[10], ip[11] = 0xFF, 0xFF, 0xFF, 0xFF
	case kind == 0x86DD && len(ip) > 48 && ip[6] == syscall.IPPROTO_UDP:
		headers = 40
		ip = ip[:40+binary.BigEndian.Uint16(ip[4:])]
		ip[0], ip[1], ip[2], ip[3], ip[7] = 0x6F, 0xFF, 0xFF, 0xFF, 0xFF
	default:
		return nil, 0
	}
	udp := ip[headers:]
	if binary.BigEndian.Uint16(udp[2:]) != 4791 || len(udp) < 8+16 {
		return nil, 0
	}
	udp[6], udp[7], udp[8+4] = 0xFF, 0xFF, 0xFF
	end := len(ip) - 4
	return append(bytes.Repeat([]byte{0xFF}, 8), ip[:end]...), binary.LittleEndian.Uint32(ip[end:])
}
