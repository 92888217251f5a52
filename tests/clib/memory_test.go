// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// Device memory, null regions and on-demand paging, for a program in C.
func TestMemory(t *testing.T) {
	program := compile(t, "memory", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	p := process.Start(t, process.Cmd(t, "verbena", "softroce", "run", "-l", folder, program))
	require.Zero(t, p.Wait(), p.Output())
	require.Empty(t, p.Output())
}
