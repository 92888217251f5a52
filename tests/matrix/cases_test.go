// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"
)

// cases are the rows of the matrix.
func cases() []kase {
	var all []kase
	add := func(telling, v6 bool, name string, run func(meeting)) {
		all = append(all, kase{name: name, telling: telling, v6: v6, run: run})
	}
	for _, v6 := range []bool{false, true} {
		for _, size := range []int{23, 4096, 65535} {
			server, client := fmt.Sprintf("-s -a {S} -v -V -S %d", size), fmt.Sprintf("-c -a {S} -v -V -C 10 -S %d", size)
			add(size == 4096, v6, fmt.Sprintf("rping, 10 pings of %d bytes", size), plain("rping", server, "rping", client))
		}
		add(false, v6, "rping, from an address, own queue pairs", plain("rping", "-s -a {S} -q", "rping", "-c -a {S} -I {C} -q -C 5 -V"))
		add(v6, v6, "ucmatose, 10 connections, 5 messages of 1000 bytes", plain(
			"ucmatose", "-b {S} -f {F} -c 10 -C 5 -S 1000", "ucmatose", "-s {S} -f {F} -c 10 -C 5 -S 1000"))
		add(!v6, v6, "udaddy, 3 queue pairs, 10 datagrams of 500 bytes", plain(
			"udaddy", "-b {S} -c 3 -C 10 -S 500", "udaddy", "-s {S} -c 3 -C 10 -S 500"))
		add(v6, v6, "rdma_client, a message each way", plain("rdma_server", "-s {S}", "rdma_client", "-s {S}"))
	}
	add(true, false, "rping, 20 clients at once", crowd)
	add(true, false, "rping, the client is killed and another one comes", killedClient)
	add(true, false, "rping, the server is killed", killedServer)
	add(true, false, "rping, wrong port", wrongPort("rping", "-s -a {S} -p 7175", "rping", "-c -a {S} -p 7176 -C 1"))
	add(false, false, "udaddy, no server", noServer("udaddy", "-s {S}"))
	add(false, false, "ucmatose, no server", noServer("ucmatose", "-s {S}"))
	add(true, false, "ucmatose, 100 connections that migrate", plain("ucmatose", "-b {S} -m -c 100 -C 3", "ucmatose", "-s {S} -m -c 100 -C 3"))
	add(false, false, "ucmatose, messages of 100,000 bytes, type of service", plain(
		"ucmatose", "-b {S} -C 3 -S 100000", "ucmatose", "-s {S} -C 3 -S 100000 -t 32"))
	add(false, false, "ucmatose, the InfiniBand port space", plain("ucmatose", "-b {S} -P ib", "ucmatose", "-s {S} -P ib"))
	add(true, false, "ucmatose, C's messages are too long", mismatched)
	all[len(all)-1].mixed = true
	add(false, false, "rdma_xclient, a message through a shared receive queue", plain("rdma_xserver", "-c r", "rdma_xclient", "-s {S} -c r"))
	add(true, false, "mckey, three members", members)
	add(true, false, "cmtime, 50 connections", timed)
	for _, test := range [][2]string{{"ib_send_lat", ""}, {"ib_write_bw", "-s 1024"}, {"ib_read_lat", ""}} {
		add(test[0] == "ib_send_lat", false, test[0]+", 50 messages", perftest(test[0], test[1]))
	}
	return all
}

// rsocketCases are the rows of programs that use rsockets.
func rsocketCases() []kase {
	var all []kase
	add := func(telling, v6 bool, name string, run func(meeting)) {
		all = append(all, kase{name: name, telling: telling, v6: v6, run: run})
	}
	for _, v6 := range []bool{false, true} {
		for _, size := range []int{1, 64, 4096, 65536, 1 << 20} {
			n := min(100, 4<<20/size)
			args := fmt.Sprintf("-T v -C %d -S %d", n, size)
			add(!v6 && size == 65536, v6, fmt.Sprintf("rstream, %d transfers of %d bytes each way", n, size), plain(
				"rstream", "-b {S} "+args, "rstream", "-s {S} "+args))
		}
		for _, how := range []string{"-T b", "-T a", "-T a -T b"} {
			args := how + " -T v -C 100 -I 2 -S 5000"
			add(v6 && how == "-T b", v6, "rstream "+how, plain("rstream", "-b {S} "+args, "rstream", "-s {S} "+args))
		}
	}
	add(false, false, "rstream, more messages than sequence numbers", plain(
		"rstream", "-b {S} -T b -T v -S 17 -C 70000", "rstream", "-s {S} -T b -T v -S 17 -C 70000"))
	add(false, false, "rstream, from an address, looked up by rdma_cm", plain(
		"rstream", "-T r -b {S} -C 10", "rstream", "-T r -s {S} -b {C} -C 10"))
	all[len(all)-1].apart = true // C's client binds to the server's port
	add(true, false, "rcopy, files of 0 bytes to 5 MiB", copies(0, 1, 65537, 5<<20))
	add(false, false, "rcopy, a file of 100 MiB", copies(100<<20))
	return all
}

// crowd is a persistent server with 20 clients at a time. C's server loses one
// of two requests that come at the same moment, so its clients come one after
// the other, and stay.
func crowd(m meeting) {
	server := m.serve("rping", "-s -P -a {S} -S 1000")
	var clients []onHost
	for range 20 {
		c := m.ask("rping", "-c -a {S} -v -V -C 100 -S 1000")
		if m.server == theirs {
			c.Prints("ping data: rdma-ping-0")
		}
		clients = append(clients, c)
	}
	for _, c := range clients {
		c.succeeds()
	}
	require.False(m, server.Ended())
	server.Kill()
}

func killedClient(m meeting) {
	server := m.serve("rping", "-s -P -a {S} -v")
	client := m.ask("rping", "-c -a {S} -v")
	client.Prints("ping data: rdma-ping-3")
	client.Kill()
	m.ask("rping", "-c -a {S} -C 3").succeeds()
	require.False(m, server.Ended())
	server.Kill()
}

func killedServer(m meeting) {
	server := m.serve("rping", "-s -a {S} -v")
	client := m.ask("rping", "-c -a {S} -v")
	client.Prints("ping data: rdma-ping-3")
	server.Kill()
	client.Wait() // C's says 0, as it does for any disconnect
	if m.client == ours {
		client.fails()
	}
}

func wrongPort(serverName, serverArgs, clientName, clientArgs string) func(meeting) {
	return func(m meeting) {
		server := m.serve(serverName, serverArgs)
		m.ask(clientName, clientArgs).fails()
		require.False(m, server.Ended())
		server.Kill()
	}
}

func noServer(name, args string) func(meeting) {
	return func(m meeting) { m.ask(name, args).fails() }
}

// mismatched has C's program send more than ours has room for. Ours ends and
// says that something failed, which C's does not look for.
func mismatched(m meeting) {
	sizes := map[side]string{ours: "100", theirs: "1000"}
	server := m.serve("ucmatose", "-b {S} -C 3 -S "+sizes[m.server])
	client := m.ask("ucmatose", "-s {S} -C 3 -S "+sizes[m.client])
	if m.server == ours {
		server.fails()
		return
	}
	client.fails()
	server.Kill()
}

// copies has the client copy files of these sizes, one after the other. C's
// cannot map an empty one, and fails before it asks the server for anything.
func copies(sizes ...int) func(meeting) {
	return func(m meeting) {
		server := m.serve("rcopy", "")
		folder := readable(m.T)
		require.NoError(m, os.Chmod(folder, 0o777)) // the server may be the user nobody
		original, copied := filepath.Join(folder, "original"), filepath.Join(folder, "copy")
		for _, size := range sizes {
			content := make([]byte, size)
			_, err := rand.NewChaCha8([32]byte{byte(size)}).Read(content)
			require.NoError(m, err)
			require.NoError(m, os.WriteFile(original, content, 0o644))
			client := m.ask("rcopy", original+" {S}:"+copied)
			if size == 0 && m.client == theirs {
				client.fails()
				require.NoFileExists(m, copied)
				continue
			}
			client.succeeds()
			got, err := os.ReadFile(copied)
			require.NoError(m, err)
			require.True(m, bytes.Equal(content, got), "%d bytes", size)
		}
		require.False(m, server.Ended())
		server.Kill()
	}
}

// members are three in a group: two of the client's and one of the server's
// side, to whom the server's side sends until all have enough.
func members(m meeting) {
	const args = "-m 239.86.69.68 -b {C} -C 10 -S 100"
	var all []onHost
	for _, s := range []side{m.client, m.client, m.server} {
		p := s.start(m.T, m.from, "mckey", m.expand(args))
		p.Prints("mckey: joined dgid: ")
		all = append(all, p)
	}
	for _, p := range all {
		p.Eventually("has its messages", func() bool {
			if !p.Ended() {
				m.server.start(m.T, m.from, "mckey", m.expand(strings.Replace(args, "-C 10", "-s -C 1000", 1))).succeeds()
			}
			return p.Ended()
		})
		p.succeeds()
	}
}

// timed has a server that goes on until it is stopped.
func timed(m meeting) {
	server := m.serve("cmtime", "-b {S}")
	m.ask("cmtime", "-s {S} -c 50").succeeds()
	server.Kill()
}

// ourTest makes verbena perf's arguments of a program of perftest and its
// flags.
var ourTest = strings.NewReplacer("ib_atomic_lat -A CMP_AND_SWAP", "cmpswap_lat", "ib_atomic_bw -A CMP_AND_SWAP", "cmpswap_bw",
	"ib_atomic_lat -A FETCH_AND_ADD", "fetchadd_lat", "ib_atomic_bw -A FETCH_AND_ADD", "fetchadd_bw", "ib_", "")

// perftest is a program of it against verbena perf with the same flags.
//
// They wait a second for an answer, not the usual 67 ms: on a busy machine, and
// in the VM, which may be emulated, both ends would send again and again what
// has not got lost, until an end has no room for it and gives up.
//
// With -D, C's client ends without a word if it stands still for a second
// before its first message. C's server then waits for ever, and both are
// started again.
func perftest(name, flags string) func(meeting) {
	if !strings.Contains(flags, "-D") && !strings.Contains(flags, "-n") {
		flags += " -n 50"
	}
	if !strings.Contains(flags, "-c U") {
		flags += " -u 18"
	}
	return func(m meeting) {
		start := func(s side, h host, args string) onHost {
			if s == ours {
				return s.start(m.T, h, "perf", ourTest.Replace(name+" "+flags)+" "+m.expand(args))
			}
			more := flags
			if h.device != "" { // C's takes the first, not the one with the address
				more += " -d " + h.device
			}
			program, more := name, more+" "+m.expand(args)
			if strings.Contains(flags, "-D") {
				program, more = inTime(program, more)
			}
			return s.start(m.T, h, program, more)
		}
		for tries := 5; ; tries-- {
			server := start(m.server, m.at, "")
			server.Eventually("listens", func() bool { return server.Ended() || m.at.sees(":18515", "ss", "-ltn") })
			client := start(m.client, m.from, "{S}")
			asked, served := client.Wait(), server.Wait()
			if tries > 1 && (client.uncalibrated() || server.uncalibrated() || served == timedOut) {
				continue
			}
			require.Zero(m, asked)
			require.Zero(m, served)
			return
		}
	}
}

// uncalibrated reports whether the program is perftest's and has given up
// because it could not find out how fast the processor's clock is, as on a busy
// machine.
func (p onHost) uncalibrated() bool { return strings.Contains(p.Output(), "Can't produce a report") }
