package rdmacm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// peerEnv holds what this program does when it runs as a test's peer: a role
// and its arguments.
const peerEnv = "VERBENA_RDMACM_PEER"

// there is the address of the other one of the guest's two hosts.
var there = netip.MustParseAddr("198.51.100.2")

// peer is another process, and with two hosts on the other host.
type peer struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

func startPeer(t testing.TB, role ...string) *peer {
	t.Helper()
	args := []string{"/proc/self/exe"}
	if twoHosts() {
		self, err := os.Executable()
		require.NoError(t, err)
		args = []string{"ip", "netns", "exec", "ns1", self}
	}
	p := &peer{t: t, cmd: exec.Command(args[0], args[1:]...), lines: make(chan string, 64)}
	p.cmd.Env = append(os.Environ(), peerEnv+"="+strings.Join(role, " "))
	p.cmd.Stderr = os.Stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		p.kill()
		for range p.lines {
		}
	})
	return p
}

func (p *peer) kill() {
	_ = p.cmd.Process.Kill() // if it was not killed yet
	_ = p.cmd.Wait()         // says that it was killed
}

// tell makes the peer go on.
func (p *peer) tell() {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in)
	require.NoError(p.t, err)
}

// hear returns what the peer says next.
func (p *peer) hear(within time.Duration) string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		require.True(p.t, ok, "the peer has ended")
		return line
	case <-time.After(within):
		require.FailNow(p.t, "the peer says nothing", "within %v", within)
	}
	return ""
}

// playPeer is what a peer's process does.
func playPeer(role []string) {
	roles := map[string]func([]string, *bufio.Scanner) error{
		"server": playServer,
		"flood":  playFlood,
		"asker":  playAsker,
	}
	fmt.Fprintln(os.Stderr, role, roles[role[0]](role[1:], bufio.NewScanner(os.Stdin)))
	os.Exit(1)
}

// playServer accepts connections at an address, with a KeepAlive, and says how
// each ends.
func playServer(args []string, _ *bufio.Scanner) error {
	ctx := context.Background()
	often, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	ln, err := rdmacm.Listen(ctx, args[0], nil)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			conn, err := req.Accept(ctx, &rdmacm.Config{KeepAlive: often})
			if err == nil {
				fmt.Println("up")
				err = errors.Join(conn.Wait(ctx), conn.Close())
			}
			fmt.Println("over:", err)
		}()
	}
}

// playAsker asks for a connection, and does not go on with the handshake.
func playAsker(args []string, in *bufio.Scanner) error {
	ch, ids, err := resolveMany(args[0], 1)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in.Scan()
	if err := ids[0].Connect(rdmacm.ConnParam{QPNum: newQP()}); err != nil {
		return err
	}
	fmt.Println("asked")
	for {
		ev, err := ch.Next(context.Background())
		if err != nil {
			return err
		}
		fmt.Println(ev.Type)
	}
}

// playFlood asks for many connections at once, and says when all were refused.
func playFlood(args []string, in *bufio.Scanner) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ch, ids, err := resolveMany(args[0], n)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in.Scan()
	start := time.Now()
	go func() {
		for _, id := range ids {
			if err := id.Connect(rdmacm.ConnParam{QPNum: newQP()}); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	for refused := range n {
		if ev, err := ch.Next(context.Background()); err != nil || ev.Type != rdmacm.EventRejected {
			return fmt.Errorf("%d: %v, %w", refused, ev, err)
		}
	}
	fmt.Println("refused", time.Since(start))
	in.Scan()
	return nil
}

// resolveMany makes ids that know the way to an address.
func resolveMany(address string, n int) (*rdmacm.EventChannel, []*rdmacm.ID, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil, err
	}
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return nil, nil, err
	}
	ids := make([]*rdmacm.ID, n)
	for i := range ids {
		if ids[i], err = ch.NewID(rdmacm.PortSpaceTCP); err != nil {
			return nil, nil, err
		}
		if err := ids[i].ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
			return nil, nil, err
		}
		if _, err := ch.Next(context.Background()); err != nil {
			return nil, nil, err
		}
		if err := ids[i].ResolveRoute(time.Second); err != nil {
			return nil, nil, err
		}
		if ev, err := ch.Next(context.Background()); err != nil || ev.Type != rdmacm.EventRouteResolved {
			return nil, nil, fmt.Errorf("%v, %w", ev, err)
		}
	}
	return ch, ids, nil
}

// cut makes all packets that this host sends to the other one be lost, until
// mend.
func cut(t testing.TB) (mend func()) {
	t.Helper()
	run(t, "tc", "qdisc", "replace", "dev", "rdma2", "root", "netem", "loss", "100%")
	mended := false
	mend = func() {
		if !mended {
			mended = true
			run(t, "tc", "qdisc", "del", "dev", "rdma2", "root")
		}
	}
	t.Cleanup(mend)
	return mend
}

// lost waits until cut has cost a packet.
func lost(t testing.TB) {
	t.Helper()
	soon(t, "a packet is lost", func() bool {
		_, after, _ := strings.Cut(command(t, "tc -s qdisc show dev rdma2"), "dropped ")
		return after != "" && !strings.HasPrefix(after, "0,")
	})
}
