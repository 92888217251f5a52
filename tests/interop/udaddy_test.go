package interop

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// udaddy's client asks for as many queue pairs as it has connections, and sends
// messages to each; when the server has them all, it sends as many back.
var (
	ourUdaddy   = program{"Go", true, "udaddy"}
	theirUdaddy = program{"C", false, "udaddy"}
)

// udaddyMain is as much of udaddy as the tests need.
func udaddyMain(args []string, stdout io.Writer) int {
	flags := flag.NewFlagSet("udaddy", flag.ContinueOnError)
	server := flags.String("s", "", "server address")
	bind := flags.String("b", "", "bind address")
	connections := flags.Int("c", 1, "connections")
	count := flags.Int("C", 10, "messages")
	size := flags.Int("S", 100, "bytes")
	reject := flags.String("reject", "", "private data to reject with")
	if flags.Parse(args) != nil {
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := func() error {
		ends := make([]*exchange, *connections)
		conns := make([]*rdmacm.DatagramConn, *connections)
		connect := func(i int) error {
			dialer := rdmacm.Dialer{LocalAddr: *bind}
			var err error
			conns[i], err = dialer.DialDatagram(ctx, udaddyAddress(*server), ends[i].config())
			return err
		}
		if *server == "" {
			ln, err := rdmacm.ListenDatagram(ctx, udaddyAddress(*bind), nil)
			if err != nil {
				return err
			}
			defer ln.Close()
			connect = func(i int) error {
				req, err := ln.Accept(ctx)
				if err != nil {
					return err
				}
				if *reject != "" {
					return req.Reject([]byte(*reject))
				}
				conns[i], err = req.Accept(ctx, ends[i].config())
				return err
			}
		}
		for i := range conns {
			ends[i] = &exchange{count: *count, size: *size}
			if err := connect(i); err != nil || *reject != "" {
				return err
			}
			defer conns[i].Close()
		}
		for i, c := range conns {
			if *server != "" {
				if err := ends[i].send(ctx, c, c.Peer()); err != nil {
					return err
				}
			}
		}
		for i, c := range conns {
			from, err := ends[i].receive(ctx)
			if err != nil {
				return err
			}
			if *server == "" {
				if err := ends[i].send(ctx, c, from); err != nil {
					return err
				}
			} else if from.QPNum != c.Peer().QPNum {
				return fmt.Errorf("answer of QP %d, not %d", from.QPNum, c.Peer().QPNum)
			}
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(stdout, "udaddy:", err)
		return 1
	}
	fmt.Fprintln(stdout, "data transfers complete")
	return 0
}

func udaddyAddress(host string) string { return net.JoinHostPort(host, "7174") }

func (x *exchange) config() *rdmacm.DatagramConfig {
	return &rdmacm.DatagramConfig{RecvQueue: x.count, Setup: x.setUp}
}

func TestUdaddy(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ server, client program }{{theirUdaddy, ourUdaddy}, {ourUdaddy, theirUdaddy}} {
		for _, with := range []struct {
			ip                       netip.Addr
			connections, count, size int
		}{{d.IPv4, 1, 10, 100}, {d.IPv6, 1, 10, 100}, {d.IPv4, 3, 5, 1024}, {d.IPv4, 1, 1, 1}} {
			name := fmt.Sprintf("%s server, %v, %d*%d messages of %d bytes",
				pair.server.name, with.ip, with.connections, with.count, with.size)
			t.Run(name, func(t *testing.T) {
				args := []string{
					"-b", with.ip.String(), "-c", fmt.Sprint(with.connections),
					"-C", fmt.Sprint(with.count), "-S", fmt.Sprint(with.size),
				}
				server := pair.server.start(t, args...)
				server.listens()
				client := pair.client.run(t, append(args, "-s", with.ip.String())...)
				for _, r := range []*process{client, server} {
					require.Zero(t, r.wait())
					require.Contains(t, r.stdout.String(), "data transfers complete")
				}
			})
		}
	}
}

func TestUdaddyIsRejected(t *testing.T) {
	d := needDevice(t)
	server := ourUdaddy.start(t, "-b", d.IPv4.String(), "-reject", "no")
	server.listens()
	client := theirUdaddy.run(t, "-s", d.IPv4.String())
	require.NotZero(t, client.status)
	require.Contains(t, client.stdout.String(), "RDMA_CM_EVENT_UNREACHABLE, error: 2")
	require.Zero(t, server.wait())

	client = theirUdaddy.run(t, "-s", d.IPv4.String())
	require.NotZero(t, client.status)
	require.Contains(t, client.stdout.String(), "RDMA_CM_EVENT_UNREACHABLE, error: 1")
	client = ourUdaddy.run(t, "-s", d.IPv4.String())
	require.Equal(t, 1, client.status)
	require.Contains(t, client.stdout.String(), "connection rejected: nobody listens on the port")
}
