// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
)

// crew are the programs of the host on the device in user space. They run as
// the user nobody. Each that runs has addresses of its own, the first those of
// the host.
type crew struct {
	running [crewSize]*process.Process
	next    int // the place of the next program
}

const crewSize = 21

// network chooses the first free place for the next program, and returns its
// network.
func (c *crew) network() string {
	c.next = slices.IndexFunc(c.running[:], func(p *process.Process) bool { return p == nil || p.Ended() })
	if c.next == 0 {
		return "udp=" + crewAddress(c.next, false) + "," + crewAddress(c.next, true)
	}
	return "udp=" + crewAddress(c.next, false)
}

// join gives the place to the program that has its network. Others may have
// ended since it was chosen.
func (c *crew) join(p *process.Process) { c.running[c.next] = p }

// crewAddress returns an address of a place.
func crewAddress(place int, v6 bool) string {
	if v6 {
		return fmt.Sprintf("2001:db8:2::%x", 2+place)
	}
	return fmt.Sprintf("203.0.113.%d", 2+place)
}

// publicFolder has copies of our programs that all users may execute.
var publicFolder string

// TestUDP runs our programs on the device in user space, as an unprivileged
// user, with C's on the kernel's device at another host, in both roles.
// VERBENA_INTEROP_UDP says which cases: the most telling ones, all, or those
// whose names it matches.
func TestUDP(t *testing.T) {
	which := os.Getenv("VERBENA_INTEROP_UDP")
	if which == "" {
		t.Skip("make interop-udp runs it")
	}
	var wanted *regexp.Regexp
	switch which {
	case "telling":
		wanted = udpTelling
	case "all":
		wanted = regexp.MustCompile("")
	default:
		wanted = regexp.MustCompile(which)
	}
	kernel, soft := udpHosts(t)
	publicFolder = readable(t)
	t.Run("all addresses", func(t *testing.T) {
		p := onNetwork(t, soft, "udp", "devices")
		p.succeeds()
		require.Regexp(t, `soft0 .* 1024 of 4096 .* udp1`, p.Stdout())
	})
	t.Run("the kernel has the port", func(t *testing.T) {
		p := onNetwork(t, kernel, "udp", "devices")
		p.fails()
		require.Regexp(t, `VERBENA_DEVICE=soft:udp: UDP port 4791 of .* is taken: .*rmmod rdma_rxe.*: address already in use`, p.Stderr())
	})
	command(t, "modprobe sch_netem")
	t.Run("no host at the address", func(t *testing.T) {
		p := onNetwork(t, soft, "udp="+crewAddress(0, false), "rping", "-c", "-a", crewAddress(crewSize, false), "-C", "1")
		p.fails()
		require.Contains(t, p.Stderr(), "resolve")
	})
	t.Run("marks instead of losses", func(t *testing.T) { marks(t, soft) })
	meet := func(k kase) {
		k.row(t, meeting{server: theirs, at: kernel, client: ours, from: soft})
		if !strings.Contains(k.name, "the server is killed") { // the kernel tells a peer of the death of a process, the device does not
			k.row(t, meeting{server: ours, at: soft, client: theirs, from: kernel})
		}
	}
	command(t, "ip -n soft link set dev udp1 gso_max_segs 1") // so that each packet is seen as it leaves
	for _, k := range append(udpCases(), kase{name: "mckey, a member on each host", run: udpMembers}) {
		if wanted.MatchString(k.name) {
			wire := sniff(t, "udp0")
			meet(k)
			wire.check(t)
		}
	}
	command(t, "ip -n soft link set dev udp1 gso_max_segs 65535")
	const bad = " netem limit 100000 delay 1ms loss 1% duplicate 1% reorder 5% 50% corrupt 1%"
	// A request to disconnect (DREQ) is repeated only as long as the program is
	// there that has sent it. If it is lost, the peer waits, or rightly reports
	// a minute later that the peer does not answer. So these messages, to QP 1
	// and with the attribute 0x15, are not lost.
	command(t, "modprobe cls_u32")
	for where, device := range map[string]string{"": "udp0", "ip netns exec soft ": "udp1"} {
		for _, line := range []string{
			"qdisc replace dev " + device + " root handle 1: prio bands 2 priomap" + strings.Repeat(" 0", 16),
			"qdisc add dev " + device + " parent 1:1" + bad,
			"filter add dev " + device + " parent 1: prio 1 protocol ip u32 match u32 1 0xffffff at 32 match u16 0x15 0xffff at 64 flowid 1:2",
			"filter add dev " + device + " parent 1: prio 2 protocol ipv6 u32 match u32 1 0xffffff at 52 match u16 0x15 0xffff at 84 flowid 1:2",
		} {
			command(t, where+"tc "+line)
		}
	}
	for _, k := range udpCases() {
		if k.name += ", bad network"; badNetwork.MatchString(k.name) && wanted.MatchString(k.name) {
			meet(k)
		}
	}
}

var (
	udpTelling = regexp.MustCompile("^(rping, 10 pings of 4096|ucmatose, 10 |udaddy, 3 |rdma_client|rping, wrong|cmtime|ib_.*_lat|" +
		"rstream, 64 transfers of 65536|mckey|rcopy, files|ib_read_bw -s 65536|ib_atomic_bw -A FETCH_AND_ADD$)")
	// badNetwork are cases of reliable connections that send enough for
	// something to get lost.
	badNetwork = regexp.MustCompile("^(rping, 10 pings of (4096|65535)|ucmatose, 10 |rstream, 64 transfers of 65536|mckey)")
)

// onNetwork starts a program of ours on a host and network.
func onNetwork(t testing.TB, h host, network, name string, args ...string) onHost {
	t.Helper()
	program, first := ourProgram(name)
	cmd := h.command(publicCopy(t, program), append(first, args...)...)
	cmd.Env = append(os.Environ(), "VERBENA_DEVICE=soft:"+network, "VERBENA_NETWORK="+h.soft)
	return onHost{process.Start(t, cmd), t, h}
}

// counters returns those of the device of the only process on a host.
func counters(p onHost) (c softroce.Counters) {
	cmd := p.host.command(publicCopy(p.t, "verbena"), "softroce", "stat", "-j")
	cmd.Env = append(os.Environ(), "VERBENA_NETWORK="+p.host.soft)
	out, err := cmd.Output()
	require.NoError(p.t, err)
	var all []softroce.Process
	require.NoError(p.t, json.Unmarshal(out, &all))
	if len(all) == 1 && len(all[0].Devices) == 1 {
		c = all[0].Devices[0].Counters
	}
	return c
}

// marks connects two hosts with the device by a network that marks packets
// where it would drop others. Each end tells the other, and nothing gets lost.
func marks(t *testing.T, client host) {
	server := client
	server.namespace = "soft2"
	for _, line := range []string{
		"ip netns add soft2",
		"ip link add mark0 netns soft type veth peer name mark1 netns soft2",
		"ip -n soft addr add 198.18.0.1/24 dev mark0",
		"ip -n soft2 addr add 198.18.0.2/24 dev mark1",
		"ip -n soft link set mark0 up",
		"ip -n soft2 link set mark1 up",
	} {
		command(t, line)
	}
	s := onNetwork(t, server, "udp=198.18.0.2", "rping", "-s", "-a", "198.18.0.2", "-S", "30000")
	s.listens()
	c := onNetwork(t, client, "udp=198.18.0.1", "rping", "-c", "-a", "198.18.0.2", "-S", "30000")
	c.Eventually("is connected", func() bool { return c.Ended() || counters(c).PacketsSent > 100 })
	for _, end := range []string{"soft tc qdisc replace dev mark0", "soft2 tc qdisc replace dev mark1"} {
		command(t, "ip netns exec "+end+" root netem limit 100000 loss 2% ecn")
	}
	for _, p := range []onHost{s, c} {
		p.Eventually("has told and was told", func() bool {
			n := counters(p)
			require.False(t, p.Ended())
			require.Zero(t, n.SequenceErrors+n.MissedAnswers)
			return n.PacketsMarked > 10 && n.NotificationsSent > 10 && n.NotificationsReceived > 10
		})
	}
	c.Kill()
	s.Kill()
}

// udpCases are the cases, and those of the device in user space, but for that
// of mckey, which has all members on one host, and for sweeps up to 8 MiB,
// which take too long in the VM.
func udpCases() (all []kase) {
	for _, k := range slices.Concat(cases(), rsocketCases(), softCases()) {
		if !strings.HasPrefix(k.name, "mckey") && !strings.Contains(k.name, "_bw -a ") {
			all = append(all, k)
		}
	}
	return all
}

// udpMembers has a member of a multicast group on each host, to which the
// client's side sends until both have enough.
func udpMembers(m meeting) {
	const args = "-m 239.86.69.68 -C 10 -S 100 -b "
	at := func(s side) (h host, ip string) {
		if s == m.client {
			return m.from, m.fromIP
		}
		return m.at, m.ip
	}
	var members []onHost
	for _, s := range []side{ours, theirs} {
		h, ip := at(s)
		p := s.start(m.T, h, "mckey", args+ip)
		p.Prints("mckey: joined dgid: ")
		members = append(members, p)
	}
	_, ip := at(m.client)
	if m.client == ours {
		ip = crewAddress(1, false) // the first is the member's
	}
	for _, p := range members {
		p.Eventually("has its messages", func() bool {
			if !p.Ended() {
				m.client.start(m.T, m.from, "mckey", strings.Replace(args, "-C 10", "-s -C 1000", 1)+ip).succeeds()
			}
			return p.Ended()
		})
		p.succeeds()
	}
}

// command runs a command, which must succeed.
func command(t *testing.T, line string) {
	t.Helper()
	args := strings.Fields(line)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
}

// udpHosts connects the guest, which has a device of the kernel's, with a
// network namespace that has none.
func udpHosts(t *testing.T) (kernel, soft host) {
	t.Helper()
	testdevice.Needs(t, testdevice.Guest)
	commands := []string{
		// As docs/softroce.md says: else a few of rdma_rxe's queue pairs at
		// once make a socket's buffer overflow.
		"sysctl -q -w net.core.rmem_max=4194304",
		"ip netns add soft",
		"ip link add udp0 type veth peer name udp1 netns soft",
		"ip addr add 203.0.113.1/24 dev udp0",
		"ip addr add 2001:db8:2::1/64 dev udp0 nodad",
		"ip link set udp0 up",
		"ip -n soft link set lo up",
		"ip -n soft addr add 2001:db8:2::2/64 dev udp1 nodad",
		"ip -n soft link set udp1 up",
		"rdma link add rxe3 type rxe netdev udp0",
	}
	for i := range crewSize {
		commands = append(commands, "ip -n soft addr add "+crewAddress(i, false)+"/24 dev udp1")
	}
	for _, line := range commands {
		command(t, line)
	}
	return host{v4: netip.MustParseAddr("203.0.113.1"), v6: netip.MustParseAddr("2001:db8:2::1"), device: "rxe3"},
		host{
			namespace: "soft", v4: netip.MustParseAddr("203.0.113.2"), v6: netip.MustParseAddr("2001:db8:2::2"), soft: "matrix", udp: &crew{},
		}
}

// readable returns a new folder that all users may read.
func readable(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "matrix")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	require.NoError(t, os.Chmod(folder, 0o755))
	return folder
}

// publicCopy returns the path of a copy of our program in publicFolder.
func publicCopy(t testing.TB, program string) string {
	t.Helper()
	path := filepath.Join(publicFolder, program)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	text, err := os.ReadFile(process.CmdPath(t, program))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o755))
	return path
}
