// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
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
