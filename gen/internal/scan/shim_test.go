// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// tooLarge lists headers of musl's that are beyond the limits of a scan.
var tooLarge = []string{"sys/soundcard.h"}

// kernels lists headers of the kernel's that build on each other, and on those
// for which there are shims.
var kernels = []string{
	"asm/types.h", "linux/errqueue.h", "linux/ethtool.h", "linux/fcntl.h", "linux/if_arp.h", "linux/if_bridge.h", "linux/if_link.h", "linux/in.h", "linux/in6.h",
	"linux/ioctl.h", "linux/ip.h", "linux/ipv6.h", "linux/kernel.h", "linux/limits.h", "linux/netlink.h", "linux/pci_regs.h", "linux/rtnetlink.h", "linux/socket.h",
	"linux/sockios.h", "linux/stat.h", "linux/stddef.h", "linux/time.h", "linux/time_types.h", "linux/types.h", "linux/udp.h", "linux/uio.h", "linux/vfio.h",
	"rdma/ib_user_mad.h", "rdma/ib_user_sa.h", "rdma/ib_user_verbs.h", "rdma/rdma_netlink.h", "rdma/rdma_user_cm.h", "rdma/rdma_user_rxe.h",
}

// TestBesideShims includes each header of musl's, and some of the kernel's,
// behind all shims: a bound header may include any of them.
func TestBesideShims(t *testing.T) {
	libc := headertest.Libc(t)
	shim := filepath.Join(headertest.Top(t), "headers", "shim")
	shims := headersIn(t, shim)
	musl := headersIn(t, filepath.Join(IncludeDir(libc), "x86_64-linux-musl"))
	require.Greater(t, len(musl), 150)
	var umbrella strings.Builder
	for _, name := range slices.DeleteFunc(shims, func(name string) bool { return name == "predefined.h" }) {
		umbrella.WriteString("#include <" + name + ">\n")
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "infiniband"), 0o700))
	opts := Options{
		Headers: dir, Shim: shim, Libc: libc, Source: filepath.Join(dir, "umbrella.h"), Version: "1.0", Draft: true,
		Known: &conventions.Table{Headers: []*conventions.Header{{Name: "infiniband/verbs.h", Package: "libibverbs"}}},
	}
	require.NoError(t, os.WriteFile(opts.Source, []byte(umbrella.String()+"#include <infiniband/verbs.h>\n"), 0o600))
	for _, name := range append(musl, kernels...) {
		if strings.HasPrefix(name, "bits/") || slices.Contains(tooLarge, name) {
			continue
		}
		text := "#include <" + name + ">\nstruct ibv_s { struct sockaddr_in6 a; };\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", "verbs.h"), []byte(text), 0o600))
		a, err := Scan(opts)
		require.NoError(t, err, name)
		require.Empty(t, a.Absent, name)
	}
}

// headersIn returns the names of the headers in a folder.
func headersIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if name, ok := strings.CutPrefix(path, dir+string(filepath.Separator)); ok && strings.HasSuffix(name, ".h") {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	}))
	return names
}

// TestAbsent has a header that includes what neither the shims nor libc have.
func TestAbsent(t *testing.T) {
	const missing = "include file not found: <sys/none.h>"
	files := map[string]string{"infiniband/verbs.h": "#include <stdint.h>\n#include <sys/none.h>\n#include <also/none.h>\nint ibv_plain(void);\nint ibv_new(int);\n"}
	_, err := scanFiles(t, files, "", false)
	require.ErrorContains(t, err, "infiniband/verbs.h:2:10: "+missing)
	a, err := scanFiles(t, files, "", true)
	require.NoError(t, err)
	require.Equal(t, []*api.Absent{
		{Name: "also/none.h", Header: "infiniband/verbs.h", Line: 3}, {Name: "sys/none.h", Header: "infiniband/verbs.h", Line: 2},
	}, a.Absent)
	require.Len(t, a.Functions, 2)
	text, err := a.Marshal()
	require.NoError(t, err)
	again, err := api.Parse(text)
	require.NoError(t, err)
	require.Equal(t, a.Absent, again.Absent)

	// The error of what is lacking then names the header, too.
	for _, lacking := range []string{"none_t ibv_plain(void);\n", "struct ibv_s { struct none n; };\n"} {
		files["infiniband/verbs.h"] = "#include <sys/none.h>\n" + lacking
		_, err = scanFiles(t, files, "", true)
		require.ErrorContains(t, err, "infiniband/verbs.h:1:10: "+missing)
		require.ErrorContains(t, err, "\ninfiniband/verbs.h:2:")
	}
	a, err = scanFiles(t, map[string]string{"umbrella.h": "#include <infiniband/verbs.h>\n#include <infiniband/none.h>\n"}, "", true)
	require.NoError(t, err)
	require.Equal(t, []*api.Absent{{Name: "infiniband/none.h", Line: 2}}, a.Absent)
	_, err = scanFiles(t, map[string]string{"umbrella.h": "#include <infiniband/none.h>\n"}, "", true)
	require.ErrorContains(t, err, "umbrella.h:1:10: include file not found: <infiniband/none.h>")
	_, err = scanFiles(t, map[string]string{"infiniband/verbs.h": "#include \"none.h\"\n"}, "", true)
	require.ErrorContains(t, err, "infiniband/verbs.h:1:10: include file not found: \"none.h\"")
}
