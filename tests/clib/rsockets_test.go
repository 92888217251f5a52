// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// What of rsockets only a C program sees.
func TestRsockets(t *testing.T) {
	program := compile(t, "rsockets", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	for _, test := range []string{"fork", "signals", "pipe"} {
		t.Run(test, func(t *testing.T) {
			p := process.Run(t, softroce(t, program, test))
			require.Zero(t, p.Wait(), "%s", p.Output())
			require.Empty(t, p.Output())
		})
	}
}
