// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The errno of a library stays in a C library of its own, which a program that
// is linked statically cannot see: each failure would be EIO.
func TestStaticProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "static")
	for linked, tt := range map[string]struct{ flags, want string }{
		"dynamically": {"", "false <nil>\n"},
		"statically": {
			"-linkmode=external -extldflags=-static",
			"true cannot use libc.so.6 in a program that is linked statically: link it dynamically, without -static\n",
		},
	} {
		t.Run(linked, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "-ldflags", tt.flags, "./testdata/static").CombinedOutput()
			require.NoError(t, err, "%s", out)
			out, err = exec.CommandContext(t.Context(), program).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, tt.want, string(out))
		})
	}
}
