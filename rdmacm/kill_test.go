package rdmacm_test

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// victimEnv holds the address that this program listens on when it runs as the
// peer that is going to be killed.
const victimEnv = "VERBENA_RDMACM_VICTIM"

// victim accepts a connection and reads the peer's memory until it is killed.
func victim(address string) {
	fmt.Fprintln(os.Stderr, "victim:", func() error {
		ctx := context.Background()
		if server, ok := strings.CutPrefix(address, dialPrefix); ok {
			return dialVictim(ctx, server)
		}
		ln, err := rdmacm.Listen(ctx, address, nil)
		if err != nil {
			return err
		}
		fmt.Println(ln.Addr())
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		var mr *ibverbs.MR
		var first *rdmacm.Receive
		conn, err := req.Accept(ctx, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
			if mr, err = c.Alloc(1<<20, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
				return err
			}
			first, err = c.PostRecv(mr.All())
			return err
		}})
		if err != nil {
			return err
		}
		fmt.Println(mr.Remote().Addr, mr.Remote().RKey)
		if _, err := first.Wait(ctx); err != nil {
			return err
		}
		fmt.Println("received")
		<-conn.Done()
		return conn.Err()
	}())
	os.Exit(1)
}

func TestPeerIsKilled(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+netip.AddrPortFrom(d.IPv4, 0).String())
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())

	conn, err := rdmacm.Dial(ctx, lines.Text(), nil)
	require.NoError(t, err)
	mr := alloc(t, conn, 1<<20)
	remote := ibverbs.RemoteBuffer{Len: 1 << 20}
	require.True(t, lines.Scan())
	_, err = fmt.Sscan(lines.Text(), &remote.Addr, &remote.RKey)
	require.NoError(t, err)
	require.NoError(t, conn.Send(ctx, mr.Sub(0, 8)))
	require.True(t, lines.Scan())
	require.Equal(t, "received", lines.Text())

	pending, err := conn.PostRecv(mr.All())
	require.NoError(t, err)
	received, writing := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := pending.Wait(ctx)
		received <- err
	}()
	go func() { // large writes, one after the other
		for {
			if err := conn.Write(ctx, remote, mr.All()); err != nil {
				writing <- err
				return
			}
		}
	}()
	require.NoError(t, conn.Write(ctx, remote, mr.All()), "it is under way")
	start := time.Now()
	require.NoError(t, cmd.Process.Kill())
	for name, result := range map[string]chan error{"write": writing, "receive": received} {
		err := <-result
		t.Logf("%s: %v, after %v", name, err, time.Since(start))
		require.Error(t, err)
		require.NoError(t, ctx.Err(), "by itself")
	}
	require.Error(t, cmd.Wait())
	require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	<-conn.Done()
	require.NoError(t, conn.Close())
}
