// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

var (
	ourRDMAClient   = program{"Go", true, "rdmaclient"}
	theirRDMAClient = program{"C", false, "rdma_client"}
	ourRDMAServer   = program{"Go", true, "rdmaserver"}
	theirRDMAServer = program{"C", false, "rdma_server"}
)

func TestRDMAClient(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ server, client program }{
		{theirRDMAServer, ourRDMAClient}, {ourRDMAServer, theirRDMAClient}, {ourRDMAServer, ourRDMAClient},
	} {
		for _, with := range []struct {
			name, listen string
			ip           netip.Addr
			port         []string
		}{
			{"IPv4", d.IPv4.String(), d.IPv4, nil},
			{"IPv6", d.IPv6.String(), d.IPv6, []string{"-p", "7500"}},
			{"everywhere", "::", d.IPv4, nil},
		} {
			t.Run(pair.server.name+" server "+pair.client.name+" client "+with.name, func(t *testing.T) {
				server := pair.server.start(t, append(with.port, "-s", with.listen)...)
				listens(t, server)
				client := pair.client.run(t, append(with.port, "-s", with.ip.String())...)
				for _, r := range []*process.Process{client, server} {
					require.Zero(t, r.Wait())
					require.Contains(t, r.Stdout(), ": end 0\n")
					require.Empty(t, r.Stderr())
				}
			})
		}
	}
}

// Without flags the server listens on every address of IPv4.
func TestRDMAServerWithoutFlags(t *testing.T) {
	d := needDevice(t)
	server := ourRDMAServer.start(t)
	listens(t, server)
	require.Zero(t, theirRDMAClient.run(t, "-s", d.IPv4.String()).Wait())
	require.Zero(t, server.Wait())
}

func TestRDMAClientFails(t *testing.T) {
	d := needDevice(t)
	taken := theirRDMAServer.start(t, "-s", d.IPv4.String(), "-p", "7501")
	listens(t, taken)
	for _, tt := range []struct {
		we, they program
		args     []string
		text     string
	}{
		{ourRDMAClient, theirRDMAClient, []string{"-s", d.IPv4.String()}, "connection rejected: no program listens on the port\n"},
		{ourRDMAClient, theirRDMAClient, []string{"-s", d.IPv4.String(), "-p", "7502"}, "connection rejected: no program listens on the port\n"},
		{ourRDMAClient, theirRDMAClient, []string{"-s", "unknown.invalid"}, "unknown.invalid"},
		{ourRDMAServer, theirRDMAServer, []string{"-s", "unknown.invalid"}, "unknown.invalid"},
		{ourRDMAServer, theirRDMAServer, []string{"-s", d.IPv4.String(), "-p", "7501"}, "another listener has this address and port"},
	} {
		we, they := tt.we.run(t, tt.args...), tt.they.run(t, tt.args...)
		require.NotZero(t, they.Wait(), tt.args)
		require.Equal(t, 1, we.Wait(), tt.args)
		require.Regexp(t, "^"+tt.we.command+": .*\n$", we.Stderr())
		require.Contains(t, we.Stderr(), tt.text, tt.args)
		require.NotContains(t, we.Stdout(), "end 0")
	}
}

func TestRDMAServerIsInterrupted(t *testing.T) {
	needDevice(t)
	server := ourRDMAServer.start(t)
	listens(t, server)
	interrupt(server)
	require.Equal(t, 130, server.Wait())
	require.Equal(t, "rdmaserver: interrupted\n", server.Stderr())
}

var (
	ourXClient   = program{"Go", true, "rdmaxclient"}
	theirXClient = program{"C", false, "rdma_xclient"}
	ourXServer   = program{"Go", true, "rdmaxserver"}
	theirXServer = program{"C", false, "rdma_xserver"}
)

func TestRDMAXClient(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ server, client program }{
		{theirXServer, ourXClient}, {ourXServer, theirXClient}, {ourXServer, ourXClient},
	} {
		for _, args := range [][]string{nil, {"-c", "r", "-p", "7503"}} {
			server := pair.server.start(t, args...)
			listens(t, server)
			client := pair.client.run(t, append(args, "-s", d.IPv4.String())...)
			for _, r := range []*process.Process{client, server} {
				require.Zero(t, r.Wait())
				require.Contains(t, r.Stdout(), ": end 0\n")
				require.Empty(t, r.Stderr())
			}
		}
	}
}

// Soft-RoCE has no extended reliable connections. C's server waits all the
// same.
func TestRDMAXClientWithoutXRC(t *testing.T) {
	d := needDevice(t)
	server := ourXServer.run(t, "-c", "x")
	require.Equal(t, 1, server.Wait())
	require.Regexp(t, `^rdmaxserver: no device supports extended reliable connections \(XRC\): ibv_open_xrcd .*\n$`, server.Stderr())

	listens(t, theirXServer.start(t, "-c", "x"))
	client, theirs := ourXClient.run(t, "-c", "x", "-s", d.IPv4.String()), theirXClient.run(t, "-c", "x", "-s", d.IPv4.String())
	require.NotZero(t, theirs.Wait())
	require.Equal(t, 1, client.Wait())
	require.Regexp(t, `^rdmaxclient: `+d.Name+` does not support extended reliable connections \(XRC\): rdma_create_qp.*\n$`, client.Stderr())
}

func TestRDMAXClientFails(t *testing.T) {
	d := needDevice(t)
	listens(t, theirXServer.start(t, "-p", "7504"))
	for _, tt := range []struct {
		we   program
		args []string
		text string
	}{
		{ourXClient, []string{"-s", d.IPv4.String()}, "connection rejected: no program listens on the port\n"},
		{ourXClient, []string{"-s", "unknown.invalid"}, "unknown.invalid"},
		{ourXServer, []string{"-p", "7504"}, "an id bound to every address conflicts with one bound to a single address\n"},
	} {
		r := tt.we.run(t, tt.args...)
		require.Equal(t, 1, r.Wait(), tt.args)
		require.Regexp(t, "^"+tt.we.command+": .*\n$", r.Stderr())
		require.Contains(t, r.Stderr(), tt.text, tt.args)
	}
}
