// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReachable asks about hosts in a network of the test's own, where no host
// answers.
func TestReachable(t *testing.T) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("needs iproute2")
	}
	done := make(chan string)
	var known map[string]bool
	var answered map[way]bool
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			done <- "needs root: " + err.Error()
			return
		}
		for line := range strings.Lines(`link set lo up
			link add near type veth peer name far
			link set far up
			link set near up
			link add near2 type veth peer name far2
			link set far2 up
			link set near2 up
			addr add 198.51.100.1/24 dev near
			addr add 2001:db8::1/64 dev near nodad
			addr add 198.51.100.2/24 dev near2
			addr add 2001:db8:2::1/64 dev near2 nodad
			addr add 192.0.2.99/32 dev lo
			route add 203.0.113.0/24 via 198.51.100.7
			route add 203.0.114.0/24 via 198.51.100.8
			neigh add 198.51.100.3 lladdr 02:00:00:00:00:03 dev near
			neigh add 198.51.100.8 lladdr 02:00:00:00:00:08 dev near
			neigh add 2001:db8::3 lladdr 02:00:00:00:00:03 dev near`) {
			if out, err := exec.Command(ip, strings.Fields(line)...).CombinedOutput(); err != nil {
				done <- "needs veth: " + line + string(out)
				return
			}
		}
		for isOurs := false; !isOurs && t.Context().Err() == nil; { // the system adds the route a moment later
			out, _ := exec.Command(ip, "-6", "route", "get", "2001:db8::1").Output()
			isOurs = strings.HasPrefix(string(out), "local")
		}
		known = map[string]bool{}
		for a := range reachable {
			known[a] = Reachable(netip.MustParseAddr(a))
		}
		answered = map[way]bool{}
		for w := range ways {
			index := map[string]int{}
			for _, name := range []string{"near", "near2"} {
				i, err := net.InterfaceByName(name)
				if err != nil {
					done <- err.Error()
					return
				}
				index[name] = i.Index
			}
			answered[w] = Answers(netip.MustParseAddr(w.own), index[w.link], netip.MustParseAddr(w.peer))
		}
		done <- ""
	}()
	if why := <-done; why != "" {
		if os.Getenv("RDMA_VM") != "" {
			require.Fail(t, why)
		}
		t.Skip(why)
	}
	require.Equal(t, reachable, known)
	require.Equal(t, ways, answered)
}

// A way is from an own address by an interface to a peer.
type way struct{ own, link, peer string }

// ways says for each way whether the system takes them.
var ways = map[way]bool{
	{"198.51.100.1", "near", "198.51.100.3"}:    true,
	{"198.51.100.2", "near2", "198.51.100.3"}:   true, // both are on one network
	{"2001:db8::1", "near", "2001:db8::3"}:      true,
	{"2001:db8::1", "near", "fe80::3"}:          true, // all are on the link
	{"198.51.100.1", "near", "203.0.113.5"}:     true, // by a router
	{"198.51.100.2", "near2", "203.0.113.5"}:    false,
	{"2001:db8:2::1", "near2", "2001:db8::3"}:   false,
	{"2001:db8::1", "near", "2001:db8:2::3"}:    false,
	{"198.51.100.1", "near", "192.0.2.1"}:       false, // no way
	{"2001:db8::1", "near", "2001:db8:9::3"}:    false,
	{"198.51.100.1", "near", "198.51.100.255"}:  false, // all
	{"198.51.100.1", "near", "255.255.255.255"}: false,
	{"198.51.100.1", "near", "224.0.0.5"}:       false,
	{"198.51.100.1", "near", "192.0.2.99"}:      true, // this machine
	{"192.0.2.99", "", "198.51.100.3"}:          true, // on the loopback interface, by any
	{"192.0.2.99", "", "192.0.2.1"}:             false,
	{"127.0.0.2", "", "127.0.0.3"}:              true,
}

// reachable are addresses, and whether the system can send to them.
var reachable = map[string]bool{
	"127.0.0.1": true, "127.0.0.9": true, "::1": true, "198.51.100.1": true, "2001:db8::1": true, // this machine
	"198.51.100.9": false, "2001:db8::2": false, // no host
	"198.51.100.3": true, "2001:db8::3": true, // a host
	"203.0.113.1": false, "203.0.114.1": true, // by routers
	"192.0.2.1": true, // no way, which others tell
}
