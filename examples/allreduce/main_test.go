// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	const two = " 192.0.2.1:7471 192.0.2.2:7471"
	process.Misused(t, "", "-x"+two, "192.0.2.1:7471", "-rank 2"+two, "-rank -1"+two, "-max 1023"+two, "-max 67108868"+two,
		"-max 1025"+two, "-rounds 0"+two, strings.Repeat("192.0.2.1:7471 ", 65))
}

// addresses returns n addresses, which are free for TCP, too.
func addresses(t *testing.T, n int) []string {
	t.Helper()
	host := testdevice.Require(t).IPv4
	if testdevice.Soft() {
		host = netip.MustParseAddr("127.0.0.1")
	}
	var all []string
	for range n {
		ln, err := net.Listen("tcp", netip.AddrPortFrom(host, 0).String())
		require.NoError(t, err)
		defer ln.Close()
		all = append(all, ln.Addr().String())
	}
	return all
}

// start starts the processes of a ring.
func start(t *testing.T, n int, flags ...string) []*process.Process {
	t.Helper()
	ring := addresses(t, n)
	var all []*process.Process
	for i := range n {
		args := append([]string{"-rank", strconv.Itoa(i)}, flags...)
		all = append(all, process.StartMain(t, append(args, ring...)...))
	}
	return all
}

// lines is what is printed for sizes from 1 KiB to 1 MiB, with TCP or without.
func lines(tcp bool) *regexp.Regexp {
	text := ""
	for size := 1 << 10; size <= 1<<20; size *= 4 {
		text += fmt.Sprintf(` *%d bytes   RDMA +\S+ +\S+ GB/s`, size)
		if tcp {
			text += `   TCP +\S+ +\S+ GB/s`
		}
		text += "\n"
	}
	return regexp.MustCompile(text + "$")
}

// The processes check the sums.
func TestSums(t *testing.T) {
	for n, flags := range map[int][]string{2: {"-tcp"}, 3: nil, 5: {"-tcp"}} {
		t.Run(fmt.Sprint(n, flags), func(t *testing.T) {
			for i, p := range start(t, n, append(flags, "-max", "1048576", "-rounds", "3")...) {
				require.Zero(t, p.Wait())
				require.Empty(t, p.Stderr())
				if i > 0 {
					require.Equal(t, fmt.Sprintf("rank %d is connected\n", i), p.Stdout())
				} else {
					require.Regexp(t, lines(flags != nil), p.Stdout())
				}
			}
		})
	}
}

func TestLocal(t *testing.T) {
	p := process.RunMain(t, append([]string{"-local", "-tcp", "-max", "1048576", "-rounds", "2"}, addresses(t, 4)...)...)
	require.Zero(t, p.Wait())
	require.Empty(t, p.Stderr())
	require.Regexp(t, lines(true), p.Stdout())
}

func TestLargest(t *testing.T) {
	p := process.RunMain(t, append([]string{"-local", "-rounds", "1"}, addresses(t, 2)...)...)
	require.Zero(t, p.Wait())
	require.Contains(t, p.Stdout(), "67108864 bytes   RDMA")
}

// If a process dies, the others end with an error.
func TestProcessDies(t *testing.T) {
	ring := start(t, 3, "-rounds", "100000000", "-timeout", "20s")
	for _, p := range ring {
		p.Prints("is connected\n")
	}
	ring[1].Kill()
	for _, p := range []*process.Process{ring[0], ring[2]} {
		require.Equal(t, 1, p.Wait())
		require.Regexp(t, `^allreduce: rank [02]: `, p.Stderr())
	}
}

func TestInterrupted(t *testing.T) {
	ring := start(t, 2, "-rounds", "100000000")
	for _, p := range ring {
		p.Prints("is connected\n")
	}
	ring[0].Signal(os.Interrupt)
	require.Equal(t, 1, ring[0].Wait())
	require.Equal(t, "allreduce: interrupt signal received\n", ring[0].Stderr())
	require.Equal(t, 1, ring[1].Wait(), "the other one has left")
}
