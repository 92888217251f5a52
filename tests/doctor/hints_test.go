// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What users meet first says what is wrong, whatever errno the libraries have
// for it.
func TestHints(t *testing.T) {
	needGuest(t)
	paths := map[string]string{"verbena": public(t, "verbena"), "rdmaclient": public(t, "rdmaclient")}
	const (
		noAccess = "no access to /dev/infiniband; verbena doctor says more\n"
		folder   = "chmod 700 /dev/infiniband"
	)
	for name, tt := range map[string]struct {
		cause, undo string
		start       []string
		program     string
		args        []string
		text        string
	}{
		"no permission for the device": {
			"chmod 600 /dev/infiniband/uverbs0", "chmod 666 /dev/infiniband/uverbs0", unprivileged("unlimited"), "verbena",
			[]string{"devices"},
			noAccess,
		},
		"no permission for connections": {
			"chmod 600 /dev/infiniband/rdma_cm", "chmod 666 /dev/infiniband/rdma_cm", unprivileged("unlimited"), "rdmaclient",
			[]string{"-s", "192.0.2.1"},
			noAccess,
		},
		"no permission for the folder: devices": {
			folder, "chmod 755 /dev/infiniband", unprivileged("unlimited"), "verbena",
			[]string{"devices"},
			"this machine has rxe0, but libibverbs has no access to /dev/infiniband, or no provider for it; verbena doctor says more\n",
		},
		"no permission for the folder: connections": {
			folder, "chmod 755 /dev/infiniband", unprivileged("unlimited"), "rdmaclient",
			[]string{"-s", "192.0.2.1"},
			"no access to /dev/infiniband; verbena doctor says more\n",
		},
		"loopback": {
			"true", "true", nil, "rdmaclient",
			[]string{"-s", "127.0.0.1"},
			"to 127.0.0.1:7471): no such device: loopback addresses such as 127.0.0.1 belong to no RDMA device; ",
		},
		"tiny MTU": {
			"ip link set rdma0 mtu 351", "ip link set rdma0 mtu 1500; " + address6, nil, "rdmaclient",
			[]string{"-s", "192.0.2.1"},
			"to 192.0.2.1:7471): invalid argument: the MTU of the network interface may be too small: RoCE needs 352 bytes; verbena doctor says more\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { system(t, tt.undo) })
			system(t, tt.cause)
			status, _, stderr := run(t, append(append(tt.start, paths[tt.program]), tt.args...)...)
			t.Log(stderr)
			require.Equal(t, 1, status)
			require.Contains(t, stderr, tt.text)
		})
	}
}
