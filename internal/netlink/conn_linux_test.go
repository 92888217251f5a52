// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The kernel's routes are asked for, with and without an answer.
func TestConn(t *testing.T) {
	c, err := Open(syscall.NETLINK_ROUTE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	family := make([]byte, syscall.SizeofIfInfomsg)
	links, err := c.Ask(syscall.RTM_GETLINK, Dump, family)
	require.NoError(t, err)
	require.NotEmpty(t, links)
	for _, m := range links {
		require.GreaterOrEqual(t, len(m), syscall.SizeofIfInfomsg)
		attributes, err := Parse(m[syscall.SizeofIfInfomsg:])
		require.NoError(t, err)
		require.NotEmpty(t, attributes.String(syscall.IFLA_IFNAME))
	}
	binary.NativeEndian.PutUint32(family[4:], 1<<30) // an interface that there is not
	_, err = c.Ask(syscall.RTM_GETLINK, 0, family)
	require.ErrorIs(t, err, syscall.ENODEV)

	_, err = Open(1 << 10)
	require.ErrorIs(t, err, syscall.EPROTONOSUPPORT)
}
