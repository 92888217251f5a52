// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// softLibraries is the folder with the libraries that C's programs run with on
// the device in user space.
var softLibraries string

// TestSoft runs the cases, and more, on the device in user space, also between
// two C programs. VERBENA_INTEROP_SOFT says which: the most telling ones, or
// all of them.
func TestSoft(t *testing.T) {
	which := os.Getenv("VERBENA_INTEROP_SOFT")
	if which == "" {
		t.Skip("make interop-soft runs it")
	}
	softLibraries = t.TempDir()
	require.Zero(t, process.Run(t, process.Cmd(t, "verbena", "softroce", "libs", softLibraries)).Wait())

	n := 0
	meet := func(k kase, client, server side) {
		n++
		h := host{
			v4: netip.MustParseAddr("127.0.0.1"), v6: netip.IPv6Loopback(), soft: fmt.Sprintf("matrix %d %d", os.Getpid(), n),
		}
		k.row(t, meeting{server: server, client: client, at: h, from: h})
	}
	for _, k := range slices.Concat(cases(), rsocketCases(), softCases(), xrcCases()) {
		if !k.telling && which != "all" || k.apart {
			continue
		}
		meet(k, ours, theirs)
		meet(k, theirs, ours)
		if !k.mixed {
			meet(k, theirs, theirs)
		}
	}
	for _, k := range theirCases() {
		if k.telling || which == "all" {
			meet(k, theirs, theirs)
		}
	}
	older, newer, err := preloads()
	if err != nil {
		fmt.Printf("the programs under librspreload are left out: %v: run scripts/test setup\n", err)
		return
	}
	for _, k := range preloadCases(older, newer) {
		meet(k, theirs, theirs)
	}
}

// softNames returns the names that processes on the device's network have
// taken, for themselves and their ports.
func (h host) softNames() []string {
	if h.soft == "" {
		return nil
	}
	network := fnv.New64a()
	network.Write([]byte(h.soft))
	prefix := fmt.Sprintf("@verbena-softroce-%016x/", network.Sum64())
	sockets, _ := h.command("cat", "/proc/net/unix").Output()
	var names []string
	for line := range strings.Lines(string(sockets)) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), prefix); ok {
			names = append(names, name)
		}
	}
	return names
}

// softCases are for the device in user space, between any two programs.
func softCases() []kase {
	var all []kase
	for _, test := range []struct {
		telling     bool
		name, flags string
	}{
		{true, "ib_send_bw", "-s 4096"},
		{false, "ib_send_bw", "-s 65536"},
		{true, "ib_write_lat", ""},
		{false, "ib_write_bw", "-s 65536"},
		{true, "ib_read_bw", "-s 65536"},
		{true, "ib_atomic_lat", "-A FETCH_AND_ADD"},
		{false, "ib_atomic_lat", "-A CMP_AND_SWAP"},
		{true, "ib_atomic_bw", "-A FETCH_AND_ADD"},
		{false, "ib_atomic_bw", "-A CMP_AND_SWAP"},
		{false, "ib_send_lat", "-e"},
		{true, "ib_send_lat", "-c UD"},
		{false, "ib_send_lat", "-c UC"},
		{false, "ib_send_lat", "-c UD -e"},
		{true, "ib_send_bw", "-q 3 -b"},
		{true, "ib_write_bw", "-q 4 -b"},
		{false, "ib_read_bw", "-q 2"},
		{false, "ib_read_bw", "-q 2 -b"},
		{false, "ib_atomic_bw", "-A FETCH_AND_ADD -b"},
		{false, "ib_send_bw", "-a -b"},
		{false, "ib_write_bw", "-a -b -n 5"},
		{true, "ib_send_bw", "-D 1 -q 2"},
		{false, "ib_send_bw", "-D 1 -b"},
		{true, "ib_write_bw", "-D 1"},
		{false, "ib_write_bw", "-D 1 -q 2 -b"},
		{false, "ib_send_lat", "-D 1"},
		{false, "ib_write_lat", "-D 1"},
		{false, "ib_read_lat", "-D 1"},
	} {
		all = append(all, kase{name: test.name + " " + test.flags, telling: test.telling, run: perftest(test.name, test.flags)})
	}
	return all
}

// xrcCases are for devices that have extended reliable connections, between any
// two programs.
func xrcCases() []kase {
	return []kase{{
		name: "rdma_xclient, a message over an extended connection", telling: true,
		run: plain("rdma_xserver", "-c x", "rdma_xclient", "-s {S} -c x"),
	}}
}

// theirCases are for two C programs.
func theirCases() []kase {
	var all []kase
	add := func(telling bool, name string, run func(meeting)) {
		all = append(all, kase{name: name, telling: telling, run: run})
	}
	for _, name := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"} {
		add(true, name, pingpong(name, "-g 0 -n 200"))
		add(false, name+", events", pingpong(name, "-g 0 -n 200 -e"))
	}
	add(false, "ibv_rc_pingpong, extended queue pair", pingpong("ibv_rc_pingpong", "-g 0 -n 200 -N"))
	add(false, "ibv_rc_pingpong, timestamps", pingpong("ibv_rc_pingpong", "-g 0 -n 200 -t"))
	add(true, "ibv_devinfo", alone("ibv_devinfo", "-v", "hca_id:\tsoft0"))
	add(false, "ibv_devices", alone("ibv_devices", "", "soft0"))
	for _, test := range []string{
		"ib_write_bw -n 5 -a", "ib_send_bw -n 200 -b", "ib_read_bw -n 200 -q 4", "ib_write_bw -n 200 -q 4 -b", "ib_send_bw -n 200 -r 64 -e",
		"ib_send_bw -n 200 -c XRC -s 3000", "ib_send_bw -n 200 -c XRC -q 3 -b", "ib_write_lat -n 200 -c XRC",
		"ib_read_bw -n 200 -c XRC", "ib_atomic_bw -n 200 -c XRC -A FETCH_AND_ADD",
		"ib_send_bw -n 200 --use-srq -q 2", "ib_send_bw -n 200 -c UD", "ib_write_lat -n 200 -I 64", "ib_send_lat -n 200 -c UC -s 1000",
	} {
		name, flags, _ := strings.Cut(test, " ")
		add(false, test, pingpong(name, flags))
	}
	for _, v6 := range []bool{false, true} {
		for _, how := range []string{"-T v -C 100 -S 65536", "-T b -T v -C 100 -S 5000", "-T a -T v -C 50 -S 100000 -B 4096"} {
			add(how[3] == 'v' && !v6, "riostream "+how, plain("riostream", "-b {S} "+how, "riostream", "-s {S} "+how))
			all[len(all)-1].v6 = v6
		}
	}
	for _, v6 := range []bool{false, true} {
		for _, how := range []string{"-T n", "-T a", "-T b"} {
			add(how == "-T a" && !v6, "udpong "+how, udpong(how))
			all[len(all)-1].v6 = v6
		}
	}
	return all
}

// udpong sends datagrams of two lengths, to a server that never ends. The
// client sends each of the longer ones until it comes back.
func udpong(how string) func(meeting) {
	return func(m meeting) {
		l, err := net.ListenPacket("udp", net.JoinHostPort(m.ip, "0"))
		require.NoError(m, err)
		_, port, err := net.SplitHostPort(l.LocalAddr().String())
		require.NoError(m, err)
		require.NoError(m, l.Close())
		server := m.server.start(m.T, m.at, "udpong", m.expand("-b {S} "+how+" -p "+port))
		server.Eventually("has the port", func() bool { return server.Ended() || m.at.sees(":"+port+" ", "ss", "-Hlun") })
		for _, test := range []string{"-S 64 -C 2000", "-T e -S 1500 -C 100"} {
			client := m.askInTime("udpong", "-s {S} "+how+" -p "+port+" "+test)
			client.succeeds()
			require.Contains(m, client.Stdout(), "custom ")
		}
		server.Kill()
		require.Contains(m, server.Stdout(), "client login from "+m.ip)
	}
}

// askInTime is ask for a program that may go on for ever on a busy machine. It
// starts the program again if it has not ended after a minute. When udpong has
// repeated a datagram after 1 ms without an answer, it gets two answers, takes
// the number of the later one for its next datagram, and so repeats the old one
// again and again. The server's queue fills with these. If a current datagram
// is lost then, the client never sends it again.
func (m meeting) askInTime(name, args string) onHost {
	m.Helper()
	for tries := 5; ; tries-- {
		p := m.ask(inTime(name, args))
		if p.Wait() != timedOut || tries == 1 {
			return p
		}
	}
}

// inTime returns a program and arguments that run a program of C's for a minute
// at most. The exit status is timedOut if that was too short.
func inTime(name, args string) (string, string) { return "timeout", "60 " + name + " " + args }

const timedOut = 124

// pingpong is two of the same program, the client with the server's address.
// Both wait 1.8 s in all for an acknowledgement, which cannot be changed. They
// are started again if an end has stood still for longer than that.
func pingpong(name, args string) func(meeting) {
	return func(m meeting) {
		for tries := 5; ; tries-- {
			server := m.server.start(m.T, m.at, name, args)
			server.Eventually("listens", func() bool { return server.Ended() || m.at.sees(":18515", "ss", "-ltn") })
			client := m.ask(name, args+" {S}")
			require.Eventually(m.T, func() bool { // an end may wait for ever for one that has given up
				return server.gaveUp() || client.Ended() && (server.Ended() || client.Wait() != 0)
			}, 5*patience, 20*time.Millisecond, "they go on and on")
			if tries > 1 && (server.gaveUp() || client.gaveUp()) {
				server.Kill()
				client.Kill()
				continue
			}
			client.succeeds()
			server.succeeds()
			return
		}
	}
}

// gaveUp reports whether C's program says that the other end's device has not
// acknowledged something in time. libibverbs' programs print the status as text
// and as a number, those of perftest as a number.
func (p onHost) gaveUp() bool {
	return strings.Contains(p.Output(), "transport retry counter exceeded") || strings.Contains(p.Output(), "Failed status 12:")
}

// alone is a program that prints something.
func alone(name, args, text string) func(meeting) {
	return func(m meeting) {
		p := m.ask(name, args)
		p.succeeds()
		require.Contains(m, p.Stdout(), text)
	}
}
