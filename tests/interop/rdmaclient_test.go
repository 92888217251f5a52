package interop

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
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
				server.listens()
				client := pair.client.run(t, append(with.port, "-s", with.ip.String())...)
				for _, r := range []*process{client, server} {
					require.Zero(t, r.wait())
					require.Contains(t, r.stdout.String(), ": end 0\n")
					require.Empty(t, r.stderr.String())
				}
			})
		}
	}
}

// Without flags the server listens on every address of IPv4.
func TestRDMAServerWithoutFlags(t *testing.T) {
	d := needDevice(t)
	server := ourRDMAServer.start(t)
	server.listens()
	require.Zero(t, theirRDMAClient.run(t, "-s", d.IPv4.String()).status)
	require.Zero(t, server.wait())
}

func TestRDMAClientFails(t *testing.T) {
	d := needDevice(t)
	taken := theirRDMAServer.start(t, "-s", d.IPv4.String(), "-p", "7501")
	taken.listens()
	for _, tt := range []struct {
		we, they program
		args     []string
		text     string
	}{
		{ourRDMAClient, theirRDMAClient, []string{"-s", d.IPv4.String()}, "connection rejected: nobody listens on the port\n"},
		{ourRDMAClient, theirRDMAClient, []string{"-s", d.IPv4.String(), "-p", "7502"}, "connection rejected: nobody listens on the port\n"},
		{ourRDMAClient, theirRDMAClient, []string{"-s", "nobody.invalid"}, "nobody.invalid"},
		{ourRDMAServer, theirRDMAServer, []string{"-s", "nobody.invalid"}, "nobody.invalid"},
		{ourRDMAServer, theirRDMAServer, []string{"-s", d.IPv4.String(), "-p", "7501"}, "another listener has this address and port"},
	} {
		we, they := tt.we.run(t, tt.args...), tt.they.run(t, tt.args...)
		require.NotZero(t, they.status, tt.args)
		require.Equal(t, 1, we.status, tt.args)
		require.Regexp(t, "^"+tt.we.command+": .*\n$", we.stderr.String())
		require.Contains(t, we.stderr.String(), tt.text, tt.args)
		require.NotContains(t, we.stdout.String(), "end 0")
	}
}

func TestRDMAServerIsInterrupted(t *testing.T) {
	needDevice(t)
	server := ourRDMAServer.start(t)
	server.listens()
	interrupt(server)
	require.Equal(t, 130, server.wait())
	require.Equal(t, "rdmaserver: interrupted\n", server.stderr.String())
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
			server.listens()
			client := pair.client.run(t, append(args, "-s", d.IPv4.String())...)
			for _, r := range []*process{client, server} {
				require.Zero(t, r.wait())
				require.Contains(t, r.stdout.String(), ": end 0\n")
				require.Empty(t, r.stderr.String())
			}
		}
	}
}

// Soft-RoCE has no extended reliable connections. C's server waits all the
// same.
func TestRDMAXClientWithoutXRC(t *testing.T) {
	d := needDevice(t)
	server := ourXServer.run(t, "-c", "x")
	require.Equal(t, 1, server.status)
	require.Regexp(t, `^rdmaxserver: no device supports extended reliable connections \(XRC\): ibv_open_xrcd .*\n$`, server.stderr.String())

	theirXServer.start(t, "-c", "x").listens()
	client, theirs := ourXClient.run(t, "-c", "x", "-s", d.IPv4.String()), theirXClient.run(t, "-c", "x", "-s", d.IPv4.String())
	require.NotZero(t, theirs.status)
	require.Equal(t, 1, client.status)
	require.Regexp(t, `^rdmaxclient: `+d.Name+` has no extended reliable connections \(XRC\): rdma_create_qp.*\n$`, client.stderr.String())
}

func TestRDMAXClientFails(t *testing.T) {
	d := needDevice(t)
	theirXServer.start(t, "-p", "7504").listens()
	for _, tt := range []struct {
		we   program
		args []string
		text string
	}{
		{ourXClient, []string{"-s", d.IPv4.String()}, "connection rejected: nobody listens on the port\n"},
		{ourXClient, []string{"-s", "nobody.invalid"}, "nobody.invalid"},
		{ourXServer, []string{"-p", "7504"}, "an id at every address excludes ids at one, and the other way round\n"},
	} {
		r := tt.we.run(t, tt.args...)
		require.Equal(t, 1, r.status, tt.args)
		require.Regexp(t, "^"+tt.we.command+": .*\n$", r.stderr.String())
		require.Contains(t, r.stderr.String(), tt.text, tt.args)
	}
}
