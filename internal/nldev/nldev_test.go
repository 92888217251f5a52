// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The kernel says which devices there are, or that it has no RDMA.
func TestConn(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Skip("no RDMA in this kernel: ", err)
	}
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	devices, err := c.Devices()
	require.NoError(t, err)
	t.Log(devices)
	objects, err := c.Objects(Device{1 << 30, "gone"}, QueuePairs)
	require.NoError(t, err, "a device that is not there any more")
	require.Empty(t, objects)
	_, err = c.ask(1000, 0, nil)
	require.Error(t, err)
	_, err = c.SharedNamespaces()
	require.NoError(t, err)
}
