// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// needGuest skips the test where what it changes would stay changed.
func needGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
}

func TestMissingLibrary(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	const verbs, cm = "libibverbs.so*", "librdmacm.so*"
	client, server := []string{"-c", "-a", d.IPv4.String()}, []string{"-s"}
	for _, tt := range []struct {
		name             string
		hide, args, want []string
	}{
		{"both", []string{verbs, cm}, client, []string{"librdmacm.so.1", "librdmacm1"}},
		{"librdmacm", []string{cm}, server, []string{"librdmacm.so.1", "librdmacm1"}},
		{"libibverbs", []string{verbs}, client, []string{"libibverbs.so.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, pattern := range tt.hide {
				hide(t, pattern)
			}
			r := ours.run(t, tt.args...)
			require.Equal(t, 1, r.Wait())
			for _, text := range append(tt.want, "on Debian and Ubuntu install ", "on Fedora ") {
				require.Contains(t, r.Stderr(), text)
			}
			t.Log(r.Stderr())
		})
	}
}

// hide moves libraries out of sight until the test ends.
func hide(t *testing.T, pattern string) {
	t.Helper()
	found := 0
	for _, folder := range []string{"/usr/lib", "/usr/lib/*", "/usr/lib64", "/usr/local/lib"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		require.NoError(t, err)
		for _, file := range files {
			hidden := filepath.Join(filepath.Dir(file), "hidden-"+filepath.Base(file))
			require.NoError(t, os.Rename(file, hidden))
			t.Cleanup(func() { require.NoError(t, os.Rename(hidden, file)) })
			found++
		}
	}
	require.NotZero(t, found)
}
