// SPDX-License-Identifier: Apache-2.0

package umad_test

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/umad"
)

// The C compiler has the members where this package has them. The kernel's
// header, which comes with libc's, declares the struct that libibumad passes
// on.
func TestLayout(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel's header is there on Linux only")
	}
	var c strings.Builder
	c.WriteString("#include <stddef.h>\n#include <rdma/ib_user_mad.h>\n")
	for member, offset := range map[string]int{"status": umad.Status, "qpn": umad.QPN, "qkey": umad.QKey, "lid": umad.LID} {
		fmt.Fprintf(&c, "_Static_assert(offsetof(struct ib_user_mad_hdr, %s) == %d, \"%s\");\n", member, offset, member)
	}
	fmt.Fprintf(&c, "_Static_assert(offsetof(struct ib_user_mad, data) == %d, \"size\");\n", umad.Size)
	cmd := exec.Command("cc", "-fsyntax-only", "-x", "c", "-")
	cmd.Stdin = strings.NewReader(c.String())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
