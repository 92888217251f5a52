// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// datagramsMain is a program with a receive posted on each kind of end for
// datagrams. It prints how these end.
func datagramsMain(args []string, stdout, _ io.Writer) int {
	ip := args[0]
	ctx := context.Background()
	ends := map[string]*rdmacm.DatagramConn{}
	err := func() (err error) {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		ln, err := rdmacm.ListenDatagram(ctx, netip.AddrPortFrom(addr, 0).String(), nil)
		if err != nil {
			return err
		}
		defer ln.Close()
		accepted := make(chan error, 1)
		go func() {
			req, err := ln.Accept(ctx)
			if err == nil {
				ends["accepted"], err = req.Accept(ctx, nil)
			}
			accepted <- err
		}()
		dialed, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
		if err != nil {
			return err
		}
		if err := <-accepted; err != nil {
			return err
		}
		ends["dialed"] = dialed
		ends["group"], err = rdmacm.JoinGroup(ctx, netip.MustParseAddr(group), &rdmacm.GroupConfig{LocalAddr: ip})
		return err
	}()
	if err != nil {
		fmt.Fprintln(stdout, err)
		return 1
	}
	waiting := make(chan error, len(ends))
	for name, c := range ends {
		r, err := c.PostRecv()
		if err != nil {
			fmt.Fprintln(stdout, err)
			return 1
		}
		go func() {
			_, err := r.Wait(ctx)
			waiting <- fmt.Errorf("%s: %w", name, err)
		}()
	}
	fmt.Fprintln(stdout, "ready")
	for range ends {
		fmt.Fprintln(stdout, <-waiting)
	}
	for name, c := range ends {
		fmt.Fprintf(stdout, "closed %s: %v\n", name, c.Close())
	}
	return 0
}

// The device goes away under ends for datagrams: they say so and end, which is
// what the kernel waits for.
func TestDeviceIsRemovedUnderDatagrams(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	program := process.Start(t, process.Command(t, "datagrams", d.IPv4.String()))
	program.Prints("ready")
	removal := exec.Command("rdma", "link", "delete", d.Name)
	require.NoError(t, removal.Start())
	require.Zero(t, program.Wait())
	awaitRemoval(t, removal)
	require.NoError(t, exec.Command("rdma", "link", "add", d.Name, "type", "rxe", "netdev", d.NetDev).Run())
	for _, name := range []string{"accepted", "dialed", "group"} {
		require.Contains(t, program.Stdout(), "\n"+name+": device removed")
		require.Contains(t, program.Stdout(), "closed "+name+": <nil>")
	}
}
