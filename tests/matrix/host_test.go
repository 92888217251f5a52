// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// host is where a program runs.
type host struct {
	namespace string // of the network; empty: the first one
	v4, v6    netip.Addr
	device    string // empty: the only one
	soft      string // the network of the device in user space; empty: a device of the kernel's
	udp       *crew  // that device speaks with other hosts; nil: it does not
}

// hosts returns where servers and clients run: the two hosts that tests/vm
// makes, or one.
func hosts(t testing.TB) (server, client host) {
	t.Helper()
	d := testdevice.Require(t)
	if os.Getenv("VERBENA_VM_HOSTS") == "2" {
		return host{namespace: "ns1", v4: netip.MustParseAddr("198.51.100.2"), v6: netip.MustParseAddr("2001:db8:1::2"), device: "rxe1"},
			host{v4: netip.MustParseAddr("198.51.100.1"), v6: netip.MustParseAddr("2001:db8:1::1"), device: "rxe2"}
	}
	one := host{v4: d.IPv4, v6: d.IPv6}
	return one, one
}

// command returns one that runs on the host.
func (h host) command(path string, args ...string) *exec.Cmd {
	if h.namespace == "" {
		return exec.Command(path, args...)
	}
	prefix := []string{"netns", "exec", h.namespace}
	if h.udp != nil {
		prefix = append(prefix, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
	}
	return exec.Command("ip", append(append(prefix, path), args...)...)
}

// sees says whether what a command prints on the host contains a text.
func (h host) sees(text, path string, args ...string) bool {
	out, err := h.command(path, args...).Output()
	return err == nil && strings.Contains(string(out), text)
}
