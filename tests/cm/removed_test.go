// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
)

// The kernel may take a device from its users before the event that says so: a
// wait that fails because of that says so too.
func TestRemovedBeforeTheEvent(t *testing.T) {
	open(t)
	verbs := fakelib.OpenProvider(t)
	conn, err := rdmacm.Dial(bounded(t), address, nil)
	require.NoError(t, err)
	message, err := conn.PostRecv()
	require.NoError(t, err)
	verbs.Next("ibv_get_cq_event", fakelib.Returns(-1, syscall.EIO))
	verbs.Next("ibv_create_comp_channel", fakelib.Returns(0, syscall.EIO)) // which is how a removed device answers
	_, err = message.Wait(bounded(t))
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorIs(t, conn.Err(), syscall.ENODEV)
	require.NoError(t, conn.Close())
}
