// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/link"
)

// neighbourEnv has the address at which the process of TestNeighbour listens.
const neighbourEnv = "CAPI_TEST_NEIGHBOUR"

// neighbour is a process that accepts connections and sends a greeting through
// each.
func neighbour(t *testing.T, addr string) {
	p := newProgram(t)
	listener, at := p.listen(tcp, netip.MustParseAddr(addr))
	fmt.Println("listening at", at)
	connections := map[*librdmacm.CmId]bool{}
	for {
		e, err := librdmacm.GetCmEvent(p.channel)
		require.NoError(t, err)
		id, event := e.Id, e.Event
		require.NoError(t, librdmacm.AckCmEvent(e))
		switch event {
		case librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST:
			createQP(t, id)
			require.NoError(t, librdmacm.Accept(id, param("")))
		case librdmacm.RDMA_CM_EVENT_ESTABLISHED:
			connections[id] = true
			memory := newObjects(t).memory
			copy(memory, "greeting")
			mr, err := librdmacm.RegMsgs(id, start(memory), 8)
			require.NoError(t, err)
			require.NoError(t, librdmacm.PostSend(id, nil, start(memory), 8, mr, 0))
		case librdmacm.RDMA_CM_EVENT_DISCONNECTED:
			require.NoError(t, librdmacm.Disconnect(id))
			destroy(t, id)
			if delete(connections, id); len(connections) == 0 {
				destroy(t, listener)
				return
			}
		}
	}
}

// startNeighbour starts a process that listens at an address, with more
// environment.
func startNeighbour(t *testing.T, addr netip.Addr, env ...string) (process *exec.Cmd, at netip.AddrPort) {
	t.Helper()
	process = exec.Command(os.Args[0], "-test.run", "^TestNeighbour$", "-test.timeout", "2m")
	process.Env = append(append(os.Environ(), neighbourEnv+"="+addr.String()), env...)
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	at, err = netip.ParseAddrPort(strings.TrimSpace(strings.TrimPrefix(line, "listening at ")))
	require.NoError(t, err)
	return process, at
}

// Processes of one machine are neighbours: what one listens for, the others can
// connect to.
func TestNeighbour(t *testing.T) {
	if addr := os.Getenv(neighbourEnv); addr != "" {
		neighbour(t, addr)
		return
	}
	for name, tt := range map[string]struct{ listen, to netip.Addr }{
		"IPv4":              {loopbacks["IPv4"], loopbacks["IPv4"]},
		"IPv6":              {loopbacks["IPv6"], loopbacks["IPv6"]},
		"all of IPv4":       {netip.IPv4Unspecified(), loopbacks["IPv4"]},
		"IPv6, all of both": {netip.IPv6Unspecified(), loopbacks["IPv6"]},
		"IPv4, all of both": {netip.IPv6Unspecified(), loopbacks["IPv4"]},
	} {
		t.Run(name, func(t *testing.T) {
			process, at := startNeighbour(t, tt.listen)
			p := newProgram(t)
			taken := p.id(tcp)
			require.ErrorIs(t, librdmacm.BindAddr(taken, sockaddr(at)), syscall.EADDRINUSE)
			connect := func() *librdmacm.CmId {
				id := p.resolve(tcp, netip.AddrPortFrom(tt.to, at.Port()))
				createQP(t, id)
				receive(t, id, func() {
					require.NoError(t, librdmacm.Connect(id, param("")))
					p.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
				})
				return id
			}
			ended, kept := connect(), connect()
			require.NoError(t, librdmacm.Disconnect(ended))
			require.Same(t, ended, p.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED))
			destroy(t, ended)
			require.NoError(t, process.Process.Kill())
			require.Same(t, kept, p.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED))
			destroy(t, kept)
			require.Error(t, process.Wait(), "it was killed")
			require.NoError(t, librdmacm.BindAddr(taken, sockaddr(at)), "the port is free again")
			destroy(t, taken)
		})
	}
}

// callerEnv has the address that the process of TestLastMessages connects to.
const callerEnv = "CAPI_TEST_CALLER"

// The last messages of a process that has ended come before its end: a
// connection that it has established and ended at once was there.
func TestLastMessages(t *testing.T) {
	if addr := os.Getenv(callerEnv); addr != "" {
		p := newProgram(t)
		id := p.resolve(tcp, netip.MustParseAddrPort(addr))
		createQP(t, id)
		require.NoError(t, librdmacm.Connect(id, param("")))
		p.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
		require.NoError(t, librdmacm.Disconnect(id))
		os.Exit(0)
	}
	p := newProgram(t)
	listener, at := p.listen(tcp, loopbacks["IPv4"])
	for range 3 {
		caller := exec.Command(os.Args[0], "-test.run", "^TestLastMessages$", "-test.timeout", "2m")
		caller.Env, caller.Stderr = append(os.Environ(), callerEnv+"="+at.String()), os.Stderr
		require.NoError(t, caller.Start())
		request := p.next(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
		id := request.Id
		require.NoError(t, librdmacm.AckCmEvent(request))
		createQP(t, id)
		require.NoError(t, librdmacm.Accept(id, param("")))
		self().Lock() // it hears nothing until the process has ended
		err := caller.Wait()
		self().Unlock()
		require.NoError(t, err)
		require.Same(t, id, p.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED))
		require.Same(t, id, p.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED))
		destroy(t, id)
	}
	destroy(t, listener)
}

// A process of another network is invisible: connecting to its port fails, and
// the port is free.
func TestNetworks(t *testing.T) {
	process, at := startNeighbour(t, loopbacks["IPv4"], link.NetworkVariable+"=another")
	p := newProgram(t)
	id := p.resolve(tcp, at)
	createQP(t, id)
	require.NoError(t, librdmacm.Connect(id, param("")))
	rejected := p.next(librdmacm.RDMA_CM_EVENT_REJECTED)
	require.Same(t, id, rejected.Id)
	require.NoError(t, librdmacm.AckCmEvent(rejected))
	listener := p.id(tcp)
	require.NoError(t, librdmacm.BindAddr(listener, sockaddr(at)))
	destroy(t, id, listener)
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait(), "it was killed")
}

// TestPortThatDoesNotAnswer asks for a port whose node hangs up, as a node
// without free descriptors does. No node refuses the request, and when the port
// answers again there is a connection.
func TestPortThatDoesNotAnswer(t *testing.T) {
	p, server := newProgram(t), newProgram(t)
	listener, at := server.listen(tcp, loopbacks["IPv4"])
	destroy(t, listener)
	hung, err := net.Listen("unix", fmt.Sprintf("%sname/%d/%v/%d/0123456789abcdef", link.Prefix(), tcp, at.Addr(), at.Port()))
	require.NoError(t, err)
	require.NoError(t, hung.(*net.UnixListener).SetDeadline(time.Now().Add(30*time.Second)))
	id := p.resolve(tcp, at)
	for sourcePort(t, id) == at.Port() { // the port is free for this node, which chooses among all
		destroy(t, id)
		id = p.resolve(tcp, at)
	}
	createQP(t, id)
	require.NoError(t, librdmacm.Connect(id, param("")))
	for range 2 { // the request, and its repetition
		c, err := hung.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.NoError(t, hung.Close())
	listener = server.id(tcp)
	require.NoError(t, librdmacm.BindAddr(listener, sockaddr(at)))
	require.NoError(t, librdmacm.Listen(listener, 1))
	e := server.next(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
	accepted := e.Id
	require.NoError(t, librdmacm.AckCmEvent(e))
	createQP(t, accepted)
	require.NoError(t, librdmacm.Accept(accepted, param("")))
	require.Same(t, id, p.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED))
	require.Same(t, accepted, server.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED))
	destroy(t, id, accepted, listener)
}

// sourcePort returns the port to which an id is bound.
func sourcePort(t *testing.T, id *librdmacm.CmId) uint16 {
	t.Helper()
	port, err := librdmacm.GetSrcPort(id)
	require.NoError(t, err)
	return port.Host()
}

// memberEnv has the group that the process of TestMulticastToNeighbours joins.
const memberEnv = "CAPI_TEST_MEMBER"

// member is an id that is in a group with a queue pair.
func member(t *testing.T, p *program, at netip.Addr, group *librdmacm.Sockaddr, flags librdmacm.CmMcJoinFlags) (*librdmacm.CmId, librdmacm.UdParam) {
	t.Helper()
	id := p.id(udp)
	require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.AddrPortFrom(at, 0))))
	createQP(t, id)
	require.NoError(t, librdmacm.JoinMulticastEx(id, &librdmacm.CmJoinMcAttrEx{
		CompMask:  librdmacm.RDMA_CM_JOIN_MC_ATTR_ADDRESS | librdmacm.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		JoinFlags: flags, Addr: group,
	}, nil))
	e := p.next(librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN)
	param := *e.Param.Ud()
	require.NoError(t, librdmacm.AckCmEvent(e))
	return id, param
}

const grh = 40 // bytes before each datagram

// listenToGroup prints what is sent to a group, until that is the end.
func listenToGroup(t *testing.T, text string) {
	at, group, _ := strings.Cut(text, " ")
	p := newProgram(t)
	to := sockaddr(netip.AddrPortFrom(netip.MustParseAddr(group), 0))
	id, _ := member(t, p, netip.MustParseAddr(at), to, librdmacm.RDMA_MC_JOIN_FLAG_FULLMEMBER)
	memory := newObjects(t).memory[:grh+3]
	mr, err := librdmacm.RegMsgs(id, start(memory), uint64(len(memory)))
	require.NoError(t, err)
	post := func() { require.NoError(t, librdmacm.PostRecv(id, nil, start(memory), uint64(len(memory)), mr)) }
	post()
	fmt.Println("member")
	for {
		var wc libibverbs.Wc
		_, err := librdmacm.GetRecvComp(id, &wc)
		require.NoError(t, err)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
		got := string(memory[grh:])
		post()
		fmt.Println("got", got)
		if got == "end" {
			break
		}
	}
	require.NoError(t, librdmacm.LeaveMulticast(id, to))
	require.NoError(t, librdmacm.DeregMr(mr))
	destroy(t, id)
	fmt.Println("left")
	bufio.NewReader(os.Stdin).ReadByte() // until the test has seen that only the group's name is gone
}

// members returns how many nodes have a name that says that they are in a
// group.
func members(t *testing.T, group netip.Addr) int {
	t.Helper()
	table, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	return strings.Count(string(table), fmt.Sprintf(" %sname/group/%v/", link.Prefix(), group))
}

// What is sent to a group reaches its members in all processes.
func TestMulticastToNeighbours(t *testing.T) {
	if text := os.Getenv(memberEnv); text != "" {
		listenToGroup(t, text)
		return
	}
	// Another run of this test has another group, whose members are others.
	// Those of IPv6 are attached to queue pairs directly.
	at, text := loopbacks["IPv4"], fmt.Sprintf("239.86.%d.%d", rand.IntN(256), rand.IntN(256))
	group := netip.MustParseAddr(text)
	p := newProgram(t)
	sender, param := member(t, p, at, sockaddr(netip.AddrPortFrom(group, 0)), librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
	require.Zero(t, members(t, group), "a sender is no member")
	type process struct {
		*exec.Cmd
		out *bufio.Reader
		in  io.Closer
	}
	var all []process
	says := func(want string) {
		t.Helper()
		for _, other := range all {
			line, err := other.out.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, want+"\n", line)
		}
	}
	for range 2 {
		c := exec.Command(os.Args[0], "-test.run", "^TestMulticastToNeighbours$", "-test.timeout", "2m")
		c.Env = append(os.Environ(), memberEnv+"="+at.String()+" "+text)
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		require.NoError(t, err)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		t.Cleanup(func() { _ = c.Process.Kill() })
		all = append(all, process{c, bufio.NewReader(out), in})
	}
	says("member")
	require.NotZero(t, members(t, group))
	ah, err := libibverbs.CreateAh(sender.Pd, &param.AhAttr)
	require.NoError(t, err)
	memory := newObjects(t).memory[:3]
	mr, err := librdmacm.RegMsgs(sender, start(memory), 3)
	require.NoError(t, err)
	for _, message := range []string{"one", "two", "end"} {
		copy(memory, message)
		require.NoError(t, librdmacm.PostUdSend(sender, nil, start(memory), 3, mr, libibverbs.IBV_SEND_SIGNALED, ah, param.QpNum))
		var wc libibverbs.Wc
		_, err = librdmacm.GetSendComp(sender, &wc)
		require.NoError(t, err)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
		says("got " + message)
	}
	says("left")
	require.Zero(t, members(t, group))
	for _, other := range all {
		require.NoError(t, other.in.Close())
		require.NoError(t, other.Wait())
	}
	require.NoError(t, libibverbs.DestroyAh(ah))
	require.NoError(t, librdmacm.DeregMr(mr))
	destroy(t, sender)
}

// receive requires that a greeting comes after connect was called.
func receive(t *testing.T, id *librdmacm.CmId, connect func()) {
	t.Helper()
	memory := newObjects(t).memory[:8]
	mr, err := librdmacm.RegMsgs(id, start(memory), 8)
	require.NoError(t, err)
	require.NoError(t, librdmacm.PostRecv(id, nil, start(memory), 8, mr))
	connect()
	var wc libibverbs.Wc
	_, err = librdmacm.GetRecvComp(id, &wc)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	require.Equal(t, "greeting", string(memory))
	require.NoError(t, librdmacm.DeregMr(mr))
}
