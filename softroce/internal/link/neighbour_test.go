// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReachable asks about hosts in a network of the test's own, where nobody answers.
func TestReachable(t *testing.T) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("needs iproute2")
	}
	done := make(chan string)
	var known map[string]bool
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
			addr add 198.51.100.1/24 dev near
			addr add 2001:db8::1/64 dev near nodad
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
		done <- ""
	}()
	if why := <-done; why != "" {
		if os.Getenv("RDMA_VM") != "" {
			require.Fail(t, why)
		}
		t.Skip(why)
	}
	require.Equal(t, reachable, known)
}

// reachable are addresses, and whether the system can send to them.
var reachable = map[string]bool{
	"127.0.0.1": true, "127.0.0.9": true, "::1": true, "198.51.100.1": true, "2001:db8::1": true, // this machine
	"198.51.100.2": false, "2001:db8::2": false, // nobody
	"198.51.100.3": true, "2001:db8::3": true, // somebody
	"203.0.113.1": false, "203.0.114.1": true, // by routers
	"192.0.2.1": true, // no way, which others tell
}
