// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// far is a host on the link that has no RDMA, and whose hardware address this
// one does not know yet.
const far = "ip netns add far; ip link set rdma1 netns far; ip -n far link set lo up; ip -n far link set rdma1 up; " +
	"ip -n far address add 192.0.2.9/24 dev rdma1"

// serve takes connections, and returns the port.
func serve(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ln, err := rdmacm.Listen(ctx, ":0", nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		done <- ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
			if conn, err := req.Accept(ctx, nil); err == nil {
				_ = conn.Wait(ctx)
				_ = conn.Close()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, ln.Close())
	})
	return fmt.Sprint(ln.Addr().Port())
}

// verbena doctor HOST says what is wrong on the way to a peer.
func TestPeer(t *testing.T) {
	d := needGuest(t)
	own := d.IPv4.String()
	port := serve(t)
	for _, tt := range []struct {
		name  string
		cause string
		args  []string
		check string // that fails first; empty: none
		found string // by it, or by the last
	}{
		{"own address", "", []string{own}, "", own + " answers"},
		{"own address of IPv6", "", []string{d.IPv6.String()}, "", d.IPv6.String() + " answers"},
		{"a server", "", []string{"-p", port, own}, "", own + " accepts connections at port " + port},
		{"no server", "", []string{"-p", "7471", own}, "peer", own + " answers, but no program listens at port 7471"},
		{"loopback", "", []string{"127.0.0.1"}, "peer's address", "127.0.0.1 is this machine's loopback"},
		{"localhost", "", []string{"localhost"}, "peer's address", " is this machine's loopback"},
		{"an unknown name", "", []string{"unknown.invalid"}, "peer's address", "unknown.invalid"},
		{"no route", "", []string{"203.0.113.9"}, "path to the peer", "this machine has no route to 203.0.113.9"},
		{"no host there", "", []string{"192.0.2.77"}, "path to the peer", "no host answers on the link for 192.0.2.77"},
		{
			"through another interface", "ip link add other type dummy; ip link set other up; ip address add 203.0.113.1/24 dev other",
			[]string{"203.0.113.9"},
			"path to the peer", "packets to 203.0.113.9 leave through other, which has no RDMA device",
		},
		{"a host without RDMA", far, []string{"192.0.2.9"}, "peer", "192.0.2.9 is up, but does not answer connection requests"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			system(t, tt.cause)
			status, stdout, stderr := run(t, append([]string{process.CmdPath(t, "verbena"), "doctor", "-j"}, tt.args...)...)
			var report diagnosis
			require.NoError(t, json.Unmarshal([]byte(stdout), &report), "%s%s", stdout, stderr)
			host := tt.args[len(tt.args)-1]
			require.Equal(t, host, report.Peer)
			f := firstFailure(report)
			require.Equal(t, tt.check, f.Check, f)
			if tt.check == "" {
				f = report.Findings[len(report.Findings)-1]
				require.Zero(t, status)
				require.Empty(t, stderr)
			} else {
				require.Equal(t, 1, status)
				require.Equal(t, "verbena doctor: RDMA does not work from here to "+host+": fix the first failure, and run verbena doctor again; VERBENA_DEVICE=soft runs programs on a device in user space meanwhile\n", stderr)
				require.NotEmpty(t, f.Remedy)
			}
			t.Logf("%+v", f)
			require.Contains(t, f.Found, tt.found)
		})
	}
	system(t, "ip link delete other; ip -n far link set rdma1 netns 1; ip netns delete far; ip link set rdma1 up; "+address6)
	healthy(t, public(t, "verbena"))
}
