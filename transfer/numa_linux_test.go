// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/mem"
)

// The kernel tells on which node a page is, on each node of this machine.
func TestNodeOf(t *testing.T) {
	require.Equal(t, -1, nodeOf(nil))
	const page = 4096
	folders, err := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	require.NoError(t, err)
	for _, folder := range folders {
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			var node int
			_, err := fmt.Sscanf(name, "node%d", &node)
			require.NoError(t, err)
			if node >= 64 {
				t.Skip("the test's mask has 64 nodes")
			}
			b, err := mem.Map(3 * page)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, mem.Unmap(b)) })
			mask := [2]uint64{1 << node}
			const bind = 2 // MPOL_BIND
			_, _, errno := syscall.Syscall6(syscall.SYS_MBIND, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), bind, uintptr(unsafe.Pointer(&mask)), 65, 0)
			if errno != 0 {
				t.Skipf("mbind: %v", errno) // a node without memory, or a container that forbids it
			}
			clear(b)
			for i := 0; i < len(b); i += page {
				require.Equal(t, node, nodeOf(&b[i+1]))
			}
			e := &Engine{nearer: map[int]*nearer{node: new(nearer)}}
			require.Same(t, e.nearer[node], e.nearerTo(b))
			require.Nil(t, e.nearerTo(nil))
			require.Nil(t, (&Engine{nearer: map[int]*nearer{node + 1: new(nearer)}}).nearerTo(b))
			require.Nil(t, new(Engine).nearerTo(b))
		})
	}
}
