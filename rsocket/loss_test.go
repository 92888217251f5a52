// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rsocket"
)

// Of the second host that tests/vm makes: its network namespace and address,
// and each host's network interface that leads to the other.
const (
	farNamespace = "ns1"
	farAddress   = "198.51.100.2"
	nearLink     = "rdma2"
	farLink      = "rdma3"
)

// lossPatience bounds what takes as long as the packets are unlucky, in an
// emulated guest.
const lossPatience = 5 * time.Minute

// far listens on the second host and sends back what comes, on each connection.
func far([]string) error {
	ln, err := rsocket.Listen("rdma", farAddress+":0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

// shell runs a command of the guest.
func shell(t *testing.T, command string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// dialFar starts the peer on the second host, and returns connections to it.
func dialFar(t *testing.T, configs ...rsocket.Config) (conns []*rsocket.Conn) {
	t.Helper()
	needDevice(t)
	if os.Getenv("VERBENA_VM_HOSTS") != "2" {
		t.Skip("needs tests/vm's second host")
	}
	shell(t, "modprobe sch_netem")
	cmd := exec.Command("ip", slices.Concat([]string{"netns", "exec", farNamespace}, process.Command(t, "far").Args)...)
	cmd.Env = process.Env("far")
	peer := process.Start(t, cmd)
	address := peer.Line()
	for _, config := range configs {
		d := rsocket.Dialer{Config: shared(config)}
		conn, err := d.DialContext(bounded(t), "rdma", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn.(*rsocket.Conn))
	}
	return conns
}

// When the other host vanishes, calls that wait and calls that write end with
// ETIMEDOUT.
func TestHostVanishes(t *testing.T) {
	config := rsocket.Config{KeepAlive: 100 * time.Millisecond}
	conns := dialFar(t, config, rsocket.Config{KeepAlive: -1})
	for _, conn := range conns { // both are up at both ends
		_, err := conn.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 1))
		require.NoError(t, err)
	}
	read := inBackground(func() error { _, err := conns[0].Read(make([]byte, 1)); return err })
	go func() { _, _ = io.Copy(io.Discard, conns[1]) }()
	write := inBackground(func() error {
		for {
			if _, err := conns[1].Write(make([]byte, 1000)); err != nil {
				return err
			}
		}
	})
	start := time.Now()
	shell(t, "ip netns exec "+farNamespace+" tc qdisc replace dev "+farLink+" root netem loss 100%")
	defer shell(t, "ip netns exec "+farNamespace+" tc qdisc del dev "+farLink+" root")
	for name, ended := range map[string]<-chan error{"read": read, "write": write} {
		err := <-ended
		t.Logf("%s: after %v: %v", name, time.Since(start).Round(time.Millisecond), err)
		require.ErrorIs(t, err, syscall.ETIMEDOUT, name)
		require.True(t, err.(net.Error).Timeout(), name)
	}
	start = time.Now()
	for _, conn := range conns {
		_ = conn.Close()
	}
	t.Logf("closed within %v", time.Since(start).Round(time.Millisecond))
}

// Where packets are lost, all bytes arrive.
func TestLoss(t *testing.T) {
	conn := dialFar(t, rsocket.Config{})[0]
	for _, prefix := range []string{"", "ip netns exec " + farNamespace + " "} {
		link := map[string]string{"": nearLink}[prefix]
		if link == "" {
			link = farLink
		}
		shell(t, prefix+"tc qdisc replace dev "+link+" root netem limit 100000 loss 1%")
		defer shell(t, prefix+"tc qdisc del dev "+link+" root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), lossPatience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	random := rand.NewChaCha8([32]byte{1})
	sent := make([]byte, 200<<10)
	_, _ = random.Read(sent)
	wrote := inBackground(func() error {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(20000))
			if _, err := conn.Write(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return conn.CloseWrite()
	})
	var got bytes.Buffer
	_, err := io.Copy(&got, conn)
	require.NoError(t, err)
	require.NoError(t, <-wrote)
	require.True(t, bytes.Equal(sent, got.Bytes()), "%d bytes of %d", got.Len(), len(sent))
}
