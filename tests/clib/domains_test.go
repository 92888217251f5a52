// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// Parent domains, imports and completion counters, for a program in C that
// polls no queue.
func TestDomains(t *testing.T) {
	program := compile(t, "domains", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	p := process.Start(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program))
	require.Zero(t, p.Wait(), p.Output())
	require.Empty(t, p.Output())
}

// A program in C allocates the memory of its queues.
func TestAllocators(t *testing.T) {
	program := compile(t, "allocators", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	p := process.Start(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program))
	require.Zero(t, p.Wait(), p.Output())
	require.Empty(t, p.Output())
}

// Threads of a program in C close contexts with objects of all kinds, on a
// device that has hardly more objects than the threads use at a time.
func TestClosing(t *testing.T) {
	program := compile(t, "closing", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	cmd := process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program, filepath.Join(t.TempDir(), "domain"))
	cmd.Env = append(cmd.Environ(), "VERBENA_LIMITS=qps=10,cqs=6,srqs=10,pds=6,mrs=20,ahs=5,counters=4,dm=512")
	p := process.Start(t, cmd)
	require.Zero(t, p.Wait(), p.Output())
	require.Empty(t, p.Output())
}
