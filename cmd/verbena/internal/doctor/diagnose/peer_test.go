// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func addresses4(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestPeersAddress(t *testing.T) {
	const remedy = "give an address of one of the peer's devices, as its verbena devices -g shows them"
	for name, tt := range map[string]struct {
		addrs []netip.Addr
		kept  int
		want  Finding
	}{
		"one":      {addresses4("192.0.2.7"), 1, Finding{Status: OK, Found: "192.0.2.7"}},
		"two":      {addresses4("2001:db8::7", "192.0.2.7"), 2, Finding{Status: OK, Found: "2001:db8::7, 192.0.2.7"}},
		"own":      {addresses4("192.0.2.1"), 1, Finding{Status: OK, Found: "192.0.2.1, which is this machine"}},
		"own link": {addresses4("fe80::1%eth0"), 1, Finding{Status: OK, Found: "fe80::1%eth0, which is this machine"}},
		"loopback": {addresses4("127.0.0.1", "::1"), 0, Finding{
			Status: Fail, Found: "127.0.0.1, ::1 is this machine's loopback address, which no RDMA device has", Remedy: remedy,
		}},
		"loopback and another": {addresses4("127.0.1.1", "192.0.2.7"), 1, Finding{Status: OK, Found: "192.0.2.7"}},
		"any": {addresses4("0.0.0.0"), 0, Finding{
			Status: Fail, Found: "0.0.0.0 is this machine's loopback address, which no RDMA device has", Remedy: remedy,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := network(t)
			require.Equal(t, tt.want, m.judgeAddresses(tt.addrs))
			require.Len(t, m.peerAddrs, tt.kept)
		})
	}
	m := network(t)
	m.peer.Host = "no host at all"
	require.Equal(t, Fail, peerAddress(t.Context(), m).Status)
}

func TestNoWay(t *testing.T) {
	failed := func(op string, errno syscall.Errno) error { return &ibverbs.Error{Op: op, Errno: errno} }
	event := func(errno syscall.Errno) error {
		return &rdmacm.EventError{Type: rdmacm.EventAddrError, Status: -int(errno)}
	}
	nobody := Finding{
		Status: Fail, Found: "no host answers on the link for 192.0.2.7, or for the gateway to it",
		Remedy: "check that the peer is up and has this address: ping 192.0.2.7",
	}
	elsewhere := Finding{
		Status: Fail, Found: "packets to 192.0.2.7 leave through eth2, which has no RDMA device",
		Remedy: "give an address of one of the peer's devices in a network that this machine's devices share, or change the route",
	}
	for name, tt := range map[string]struct {
		err    error
		source error
		want   Finding
	}{
		"not there":             {event(syscall.ETIMEDOUT), nil, nobody},
		"unreachable":           {event(syscall.EHOSTUNREACH), nil, nobody},
		"no answer in time":     {context.DeadlineExceeded, nil, nobody},
		"another interface":     {event(syscall.ENODEV), nil, elsewhere},
		"another interface too": {failed("rdma_resolve_addr", syscall.ENODEV), nil, elsewhere},
		"no route": {failed("rdma_resolve_addr", syscall.ENETUNREACH), syscall.ENETUNREACH, Finding{
			Status: Fail, Found: "this machine has no route to 192.0.2.7: network is unreachable",
			Remedy: "add a route through the interface of an RDMA device",
		}},
		"other": {failed("rdma_create_id", syscall.EMFILE), nil, Finding{
			Status: Fail, Found: "none to 192.0.2.7: rdma_create_id: too many open files", Remedy: moreFiles,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := network(t)
			m.source = func(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("198.51.100.1"), tt.source }
			require.Equal(t, tt.want, m.noPath(netip.MustParseAddr("192.0.2.7"), tt.err))
		})
	}
}

func TestPeersAnswer(t *testing.T) {
	silent := Finding{
		Status: Fail, Found: "192.0.2.7 is up, but does not answer connection requests",
		Remedy: "run verbena doctor on the peer: it needs an active RDMA device of the same kind at this address; " +
			"check that nothing on the path drops UDP port 4791, including a firewall on the peer",
	}
	for name, tt := range map[string]struct {
		port int
		err  error
		want Finding
	}{
		"no listener, as asked for": {0, &rdmacm.RejectedError{Reason: rdmacm.ReasonNoListener}, Finding{
			Status: OK, Found: "192.0.2.7 answers: it refuses port 1, at which no program listens",
		}},
		"no listener, of iWARP": {0, &rdmacm.RejectedError{Reason: -rdmacm.Reason(syscall.ECONNREFUSED)}, Finding{
			Status: OK, Found: "192.0.2.7 answers: it refuses port 1, at which no program listens",
		}},
		"no listener where a server should be": {7471, &rdmacm.RejectedError{Reason: rdmacm.ReasonNoListener}, Finding{
			Status: Fail, Found: "192.0.2.7 answers, but no program listens at port 7471",
			Remedy: "start the server, at this address or at every one, or give its port",
		}},
		"a server": {7471, nil, Finding{Status: OK, Found: "192.0.2.7 accepts connections at port 7471"}},
		"a server that refuses": {7471, &rdmacm.RejectedError{Reason: rdmacm.ReasonConsumer}, Finding{
			Status: OK, Found: "192.0.2.7 answers: connection rejected: refused by the peer's program",
		}},
		"silence":        {0, context.DeadlineExceeded, silent},
		"silence, noted": {0, &rdmacm.EventError{Type: rdmacm.EventUnreachable, Status: -int(syscall.ETIMEDOUT)}, silent},
		"other":          {0, errors.New("odd"), Finding{Status: Fail, Found: "connecting to 192.0.2.7: odd", Remedy: whyNot(errors.New("odd"))}},
	} {
		t.Run(name, func(t *testing.T) {
			m := network(t)
			m.peer.Port = tt.port
			require.Equal(t, tt.want, m.judgeAnswer("192.0.2.7", tt.err))
		})
	}
}

// A firewall is blamed only where packets were lost.
func TestWhyNot(t *testing.T) {
	const firewall = "firewall"
	for _, err := range []error{context.DeadlineExceeded, syscall.EHOSTUNREACH, ibverbs.WCRetryExceeded} {
		require.Contains(t, whyNot(err), firewall)
	}
	for err, text := range map[error]string{
		syscall.EMFILE: "LimitNOFILE", syscall.ENFILE: "LimitNOFILE", syscall.ENOMEM: "ulimit -l", syscall.EINVAL: "dmesg",
	} {
		require.Contains(t, whyNot(err), text)
		require.NotContains(t, whyNot(err), firewall)
	}
}
