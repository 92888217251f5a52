// SPDX-License-Identifier: Apache-2.0

// Package ownnetwork gives a test binary that imports it, and the processes
// that it starts, a network of their own for the device in user space.
// Otherwise, processes of other tests could use a port that the test needs, and
// their connections would count as leaks.
package ownnetwork

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"strings"
)

const variable = "VERBENA_NETWORK"

func init() {
	if os.Getenv(variable) == "" {
		os.Setenv(variable, fmt.Sprintf("test %d", os.Getpid()))
	}
}

// Listens reports whether a process on a network of the device listens, in the
// network namespace of the process pid. Networks have the names that
// VERBENA_NETWORK has.
func Listens(pid int, network string) bool {
	hash := fnv.New64a()
	hash.Write([]byte(network))
	sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	return err == nil && strings.Contains(string(sockets), fmt.Sprintf("@verbena-softroce-%016x/listen/", hash.Sum64()))
}

// Addr returns one of four loopback addresses that test binaries running at the
// same time practically never share. i is 0 to 3.
func Addr(i byte) netip.Addr {
	pid := os.Getpid() // of 22 bits, of which the address has 21
	return netip.AddrFrom4([4]byte{127, 128 + byte(pid>>14&127), byte(pid >> 6), byte(pid<<2) | i&3})
}
