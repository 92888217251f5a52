// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func init() {
	hostPrograms["server"], hostPrograms["client"], hostPrograms["attacker"] = serverHost, clientHost, attackerHost
}

// addresses of the hosts, in IPv4 and IPv6.
var (
	serverAddrs   = [2]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8:18::1")}
	clientAddrs   = [2]netip.Addr{netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("2001:db8:18::2")}
	attackerAddrs = [2]netip.Addr{netip.MustParseAddr("198.18.0.66"), netip.MustParseAddr("2001:db8:18::66")}
)

const hostPort = 7471

// echo answers each message of a connection with itself, until the connection
// ends.
func echo(ctx context.Context, request *rdmacm.Request) error {
	var receiver *rdmacm.Receiver
	limit := 5 * time.Second // for hosts that never answer
	if slices.Contains(clientAddrs[:], request.RemoteAddr().Addr()) {
		limit = time.Minute
	}
	conn, err := request.Accept(ctx, &rdmacm.Config{HandshakeTimeout: limit, Setup: func(c *rdmacm.Conn) (err error) {
		receiver, err = c.NewReceiver(64)
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	memory, err := conn.Alloc(64, 0)
	if err != nil {
		return err
	}
	for {
		m, err := receiver.Next(ctx)
		if err != nil {
			return err
		}
		if err := conn.Send(ctx, memory.Sub(0, copy(memory.Bytes(), m.Data))); err != nil {
			return err
		}
	}
}

// serverHost accepts all connections at an address, and says whose they are.
func serverHost(args []string, stdout, stderr io.Writer) int {
	ctx := context.Background()
	if err := softroce.Use(softroce.Config{Network: "udp=" + args[0]}); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(netip.MustParseAddr(args[0]), hostPort).String(), nil)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, "listens")
	err = ln.Serve(ctx, func(ctx context.Context, request *rdmacm.Request) {
		fmt.Fprintln(stdout, "request of", request.RemoteAddr())
		err := echo(ctx, request)
		fmt.Fprintln(stdout, "end of", request.RemoteAddr(), err)
	})
	fmt.Fprintln(stderr, err)
	return 1
}

// clientHost connects to an address from another one, and sends each line of
// its input, for which it waits to come back.
func clientHost(args []string, stdout, stderr io.Writer) int {
	if err := softroce.Use(softroce.Config{Network: "udp=" + args[0]}); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var receiver *rdmacm.Receiver
	conn, err := rdmacm.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(args[1]), hostPort).String(), &rdmacm.Config{
		Setup: func(c *rdmacm.Conn) (err error) {
			receiver, err = c.NewReceiver(64)
			return err
		},
	})
	if err != nil {
		fmt.Fprintln(stderr, "dial:", err)
		return 1
	}
	defer conn.Close()
	fmt.Fprintln(stdout, "connected")
	memory, err := conn.Alloc(64, 0)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	for {
		select {
		case <-conn.Done():
			fmt.Fprintln(stderr, "end:", conn.Err())
			return 2
		case line, ok := <-lines:
			if !ok {
				return 0
			}
			err := conn.Send(ctx, memory.Sub(0, copy(memory.Bytes(), line)))
			if err == nil {
				var m *rdmacm.Message
				if m, err = receiver.Next(ctx); err == nil {
					fmt.Fprintln(stdout, "back", string(m.Data))
				}
			}
			if err != nil {
				fmt.Fprintln(stderr, "end:", err)
				return 2
			}
		}
	}
}

// attackerHost sends the packets of its input to the device's port of other
// hosts, from any address.
func attackerHost(_ []string, stdout, stderr io.Writer) int {
	const headerIncluded6 = 36 // IPV6_HDRINCL; IPPROTO_RAW implies that of IPv4
	var sockets [2]int
	for i, family := range []int{syscall.AF_INET, syscall.AF_INET6} {
		fd, err := syscall.Socket(family, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.IPPROTO_RAW)
		if err == nil && i == 1 {
			err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, headerIncluded6, 1)
		}
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		sockets[i] = fd
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		field := strings.Fields(in.Text()) // source, destination, packet
		src, dst := netip.MustParseAddr(field[0]), netip.MustParseAddr(field[1])
		packet, err := hex.DecodeString(field[2])
		if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		datagram := datagramOf(src, dst, packet)
		if dst.Is4() {
			err = syscall.Sendto(sockets[0], datagram, 0, &syscall.SockaddrInet4{Addr: dst.As4()})
		} else {
			err = syscall.Sendto(sockets[1], datagram, 0, &syscall.SockaddrInet6{Addr: dst.As16()})
		}
		if err != nil {
			fmt.Fprintln(stderr, "from", src, err)
			return 1
		}
		fmt.Fprintln(stdout, "sent")
	}
	return 0
}

// datagramOf returns an IP packet with a UDP datagram. The system fills in
// IPv4's checksum.
func datagramOf(src, dst netip.Addr, payload []byte) []byte {
	const udpHeader, hops = 8, 64
	size := udpHeader + len(payload)
	var b []byte
	if dst.Is4() {
		b = binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+size))
		b = append(b, 0, 0, 0x40, 0, hops, syscall.IPPROTO_UDP, 0, 0) // the identification is 0, as of what may not be fragmented
	} else {
		b = binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(size))
		b = append(b, syscall.IPPROTO_UDP, hops)
	}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, uint16(size))
	return append(append(b, 0, 0), payload...)
}

// hosts are network namespaces on one bridge: a server, a client, and a host
// that attacks them.
type hosts struct {
	t                        *testing.T
	which                    int // 0: IPv4, 1: IPv6
	server, client, attacker *process.Process
	capture                  string
	sent                     int
	lines                    int
}

var numberOfHosts int

// newHosts starts the hosts. The client is connected to the server.
func newHosts(t *testing.T, which int) *hosts {
	t.Helper()
	prefix := fmt.Sprintf("vb%d-%d", os.Getpid(), numberOfHosts)
	numberOfHosts++
	run := func(line string) error {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
		return nil
	}
	names := []string{prefix + "-hub", prefix + "-s", prefix + "-c", prefix + "-a"}
	for _, name := range names {
		t.Cleanup(func() { _ = run("netns del " + name) }) // the test may have none
		if err := run("netns add " + name); err != nil {
			require.Empty(t, os.Getenv("RDMA_VM"), err)
			t.Skip("this test needs network namespaces: ", err)
		}
	}
	require.NoError(t, run("-n "+names[0]+" link add hub type bridge"))
	require.NoError(t, run("-n "+names[0]+" link set hub up"))
	for i, a := range [][2]netip.Addr{serverAddrs, clientAddrs, attackerAddrs} {
		name := names[1+i]
		port := "port" + strconv.Itoa(i)
		for _, line := range []string{
			"-n " + names[0] + " link add " + port + " type veth peer name eth0 netns " + name,
			"-n " + names[0] + " link set " + port + " master hub",
			"-n " + names[0] + " link set " + port + " up",
			"-n " + name + " addr add " + a[0].String() + "/24 dev eth0",
			"-n " + name + " addr add " + a[1].String() + "/64 dev eth0 nodad",
			"-n " + name + " link set lo up",
			"-n " + name + " link set eth0 up",
		} {
			require.NoError(t, run(line))
		}
	}
	h := &hosts{t: t, which: which, capture: t.TempDir() + "/sent.pcap"}
	start := func(namespace, program string, args ...string) *process.Process {
		cmd := exec.Command("ip", append([]string{"netns", "exec", namespace, process.Self(t)}, args...)...)
		cmd.Env = append(process.Env(program), "VERBENA_CAPTURE="+h.capture)
		return process.Start(t, cmd)
	}
	h.server = start(names[1], "server", serverAddrs[which].String())
	h.server.Prints("listens\n")
	h.client = start(names[2], "client", clientAddrs[which].String(), serverAddrs[which].String())
	h.client.Prints("connected\n")
	h.attacker = start(names[3], "attacker")
	return h
}

// works requires that the client's connection still does what it should.
func (h *hosts) works() {
	h.t.Helper()
	h.lines++
	line := fmt.Sprintf("line %d.", h.lines)
	_, err := fmt.Fprintln(h.client.Stdin, line)
	require.NoError(h.t, err, h.client.Output())
	h.client.Eventually("has its line back", func() bool {
		return h.client.Ended() || strings.Contains(h.client.Stdout(), "back "+line)
	})
	require.False(h.t, h.client.Ended(), h.client.Output())
	require.False(h.t, h.server.Ended(), h.server.Output())
}

// send has the attacker send packets from an address to the server or to the
// client.
func (h *hosts) send(src netip.Addr, toClient bool, packets ...*wire.Packet) {
	h.t.Helper()
	dst := serverAddrs[h.which]
	if toClient {
		dst = clientAddrs[h.which]
	}
	flow := wire.NewFlow(wire.GIDOf(src), wire.GIDOf(dst), wire.Port)
	for _, p := range packets {
		b := p.Append(nil)
		flow.Seal(b, 0)
		_, err := fmt.Fprintf(h.attacker.Stdin, "%v %v %x\n", src, dst, b)
		require.NoError(h.t, err, h.attacker.Output())
	}
	h.sent += len(packets)
	h.attacker.Eventually("has sent", func() bool {
		return h.attacker.Ended() || strings.Count(h.attacker.Stdout(), "sent\n") == h.sent
	})
	require.False(h.t, h.attacker.Ended(), h.attacker.Output())
}

// messagePacket returns the packet that carries a message of the connection
// manager.
func messagePacket(m wire.Message) *wire.Packet {
	data := wire.MAD(m)
	return &wire.Packet{
		Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI, SrcQP: wire.GSI, QKey: wire.GSIQKey, Payload: [][]byte{data[:]},
	}
}

// requests returns the addresses of which the server has seen requests.
func (h *hosts) requests() (from []netip.Addr) {
	h.t.Helper()
	for line := range strings.Lines(h.server.Stdout()) {
		if _, address, is := strings.Cut(line, "request of "); is {
			a, err := netip.ParseAddrPort(strings.TrimSpace(address))
			require.NoError(h.t, err)
			from = append(from, a.Addr())
		}
	}
	return from
}

// seen is what a host that reads along knows of the connection between the
// client and the server.
type seen struct {
	req       *wire.REQ
	rep       *wire.REP
	toServer  wire.PSN // of the next packet from the client, when the connection was made
	clientQPN uint32
	serverQPN uint32
}

// captured returns the packets that both ends have sent so far, without their
// addresses.
func (h *hosts) captured() (packets []*wire.Packet) {
	h.t.Helper()
	all, err := os.ReadFile(h.capture)
	require.NoError(h.t, err)
	const header, record = 24, 16
	b := all[header:]
	for len(b) >= record {
		size := int(uint32(b[8]) | uint32(b[9])<<8 | uint32(b[10])<<16 | uint32(b[11])<<24)
		if len(b) < record+size {
			break
		}
		packet := b[record:][:size]
		b = b[record+size:]
		skip := 40 + 8
		if packet[0]>>4 == 4 {
			skip = 20 + 8
		}
		p := &wire.Packet{}
		if p.Parse(packet[skip:], netip.AddrPortFrom(netip.IPv4Unspecified(), 1), netip.IPv4Unspecified()) == nil {
			packets = append(packets, p)
		}
	}
	return packets
}

// seen reads the capture of both ends.
func (h *hosts) seen() (s seen) {
	h.t.Helper()
	for _, p := range h.captured() {
		if p.DestQP != wire.GSI {
			continue
		}
		m, err := wire.ParseMAD(bytes.Join(p.Payload, nil))
		require.NoError(h.t, err)
		switch m := m.(type) {
		case *wire.REQ:
			s.req = m
		case *wire.REP:
			s.rep = m
		}
	}
	require.NotNil(h.t, s.req)
	require.NotNil(h.t, s.rep)
	s.toServer = s.rep.StartingPSN
	s.clientQPN, s.serverQPN = s.req.LocalQPN, s.rep.LocalQPN
	return s
}

// request returns a REQ to the server.
func (h *hosts) request(src netip.Addr, number uint32) *wire.REQ {
	req := &wire.REQ{
		Header: wire.Header{TID: uint64(number)}, LocalCommID: number, LocalCAGUID: 7, LocalQPN: number & 0xFFFFFF,
		ServiceID: wire.ServiceID(0x106, hostPort), PathMTU: 3, RetryCount: 7, RNRRetryCount: 7,
		RemoteResponseTimeout: 31, LocalResponseTimeout: 31, MaxCMRetries: 15, PKey: wire.DefaultPKey,
		Primary: wire.Path{
			LocalGID: wire.GIDOf(src), RemoteGID: wire.GIDOf(serverAddrs[h.which]), HopLimit: 64, AckTimeout: 31,
		},
	}
	wire.IPHeader{Src: src, Dst: serverAddrs[h.which], SrcPort: 1}.Put((*[wire.IPHeaderLen]byte)(req.PrivateData[:]))
	return req
}

// eachFamily runs a test with hosts of IPv4 and of IPv6.
func eachFamily(t *testing.T, test func(t *testing.T, h *hosts)) {
	if testing.Short() {
		t.Skip("hosts take a while")
	}
	for which, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) { test(t, newHosts(t, which)) })
	}
}
