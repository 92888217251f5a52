// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// start starts a program with the device on the network of all machines.
func start(t *testing.T, network, name, args string, env ...string) *process.Process {
	t.Helper()
	args = strings.NewReplacer("{S}", ownnetwork.Addr(1).String(), "{C}", ownnetwork.Addr(2).String()).Replace(args)
	cmd := process.Cmd(t, name, strings.Fields(args)...)
	cmd.Env = append(append(cmd.Env, "VERBENA_DEVICE=soft:"+network), env...)
	return process.Start(t, cmd)
}

// awaitListening waits until a process listens.
func awaitListening(p *process.Process) {
	name := fmt.Sprintf("/listen/%d/", p.Pid())
	p.Eventually("listens", func() bool {
		sockets, _ := os.ReadFile("/proc/net/unix")
		return p.Ended() || strings.Contains(string(sockets), name)
	})
}

// TestUDP runs programs in two processes whose packets are UDP datagrams.
func TestUDP(t *testing.T) {
	for _, test := range []struct {
		name               string
		server, serverArgs string
		client, clientArgs string
		serverStays        bool
	}{
		{name: "rping", server: "rping", serverArgs: "-s -a {S} -V -S 65535", client: "rping", clientArgs: "-c -a {S} -V -C 5 -S 65535"},
		{name: "rstream", server: "rstream", serverArgs: "-b {S} -T v -C 5 -S 1048576", client: "rstream", clientArgs: "-s {S} -T v -C 5 -S 1048576"},
		{name: "ucmatose", server: "ucmatose", serverArgs: "-b {S} -c 10 -C 5 -S 1000", client: "ucmatose", clientArgs: "-s {S} -c 10 -C 5 -S 1000"},
		{name: "udaddy", server: "udaddy", serverArgs: "-b {S} -c 3 -C 10 -S 500", client: "udaddy", clientArgs: "-s {S} -c 3 -C 10 -S 500"},
		{name: "rdmaclient", server: "rdmaserver", serverArgs: "-s {S}", client: "rdmaclient", clientArgs: "-s {S}"},
		{name: "cmtime", server: "cmtime", serverArgs: "-b {S}", client: "cmtime", clientArgs: "-s {S} -c 20", serverStays: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, "udp="+ownnetwork.Addr(1).String(), test.server, test.serverArgs)
			awaitListening(server)
			require.Zero(t, start(t, "udp="+ownnetwork.Addr(2).String(), test.client, test.clientArgs).Wait())
			if !test.serverStays {
				require.Zero(t, server.Wait())
			}
		})
	}
}

// TestUDPCapture captures at one end what both ends send. Wireshark's
// dissectors understand it, where tshark is installed.
func TestUDPCapture(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark here")
	}
	name := filepath.Join(t.TempDir(), "ping.pcap")
	server := start(t, "udp="+ownnetwork.Addr(1).String(), "rping", "-s -a {S} -V -S 5000", "VERBENA_CAPTURE="+name)
	awaitListening(server)
	require.Zero(t, start(t, "udp="+ownnetwork.Addr(2).String(), "rping", "-c -a {S} -V -C 3 -S 5000").Wait())
	require.Zero(t, server.Wait())
	fields := []string{"-r", name, "-T", "fields", "-e", "ip.src", "-e", "_ws.col.Info", "-e", "_ws.malformed"}
	out, err := exec.Command(tshark, fields...).Output()
	require.NoError(t, err)
	for _, text := range []string{
		ownnetwork.Addr(2).String() + "\tCM: ConnectRequest", ownnetwork.Addr(1).String() + "\tCM: ConnectReply", ownnetwork.Addr(2).String() + "\tCM: ReadyToUse",
		ownnetwork.Addr(1).String() + "\tRC RDMA Read Request", ownnetwork.Addr(2).String() + "\tRC RDMA Read Response First", ownnetwork.Addr(1).String() + "\tRC RDMA Write First",
		ownnetwork.Addr(2).String() + "\tRC Acknowledge", ownnetwork.Addr(1).String() + "\tRC Acknowledge",
	} {
		require.Contains(t, string(out), text)
	}
	require.NotContains(t, strings.ToLower(string(out)), "malformed")
}

// TestUDPGroup has members of a multicast group in two processes, and a sender
// in a third one.
func TestUDPGroup(t *testing.T) {
	const args = "-m 239.86.69.68 -C 10 -S 100 -b "
	var members []*process.Process
	for i := range byte(2) {
		p := start(t, "udp="+ownnetwork.Addr(i).String(), "mckey", args+ownnetwork.Addr(i).String())
		p.Prints("mckey: joined dgid: ")
		members = append(members, p)
	}
	for _, p := range members {
		p.Eventually("has its messages", func() bool {
			if !p.Ended() {
				sender := start(t, "udp="+ownnetwork.Addr(2).String(), "mckey", strings.Replace(args, "-C 10", "-s -C 100", 1)+ownnetwork.Addr(2).String())
				require.Zero(t, sender.Wait())
			}
			return p.Ended()
		})
		require.Zero(t, p.Wait())
	}
}

// TestUDPMistakes chooses networks that cannot be had.
func TestUDPMistakes(t *testing.T) {
	server := start(t, "udp="+ownnetwork.Addr(1).String(), "rping", "-s -a {S}")
	awaitListening(server)
	for network, says := range map[string]string{
		"udp=" + ownnetwork.Addr(1).String(): "UDP port 4791 of " + ownnetwork.Addr(1).String() + " is in use: by another process with this device, which must use " +
			`other addresses, or by the kernel \(rmmod rdma_rxe frees it\): address already in use`,
		"udp=192.0.2.77": "192.0.2.77: .*bind: cannot assign requested address",
		"udp=here":       `"here" is not an address`,
		"tcp":            `unknown network "tcp": want udp, or udp= and addresses of this machine`,
	} {
		p := start(t, network, "verbena", "devices")
		require.NotZero(t, p.Wait())
		require.Regexp(t, "^verbena devices: VERBENA_DEVICE=soft:"+network+": "+says, p.Stderr())
	}
	require.False(t, server.Ended())
	server.Kill()
}

// TestUDPNobody asks for a connection where no program listens.
func TestUDPNobody(t *testing.T) {
	server := start(t, "udp="+ownnetwork.Addr(1).String(), "rping", "-s -a {S}")
	awaitListening(server)
	p := start(t, "udp="+ownnetwork.Addr(2).String(), "rping", "-c -a {S} -p 7175 -C 1")
	require.NotZero(t, p.Wait())
	require.Contains(t, p.Stderr(), "no program listens on the port")
	server.Kill()
}
