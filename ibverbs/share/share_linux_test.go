// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/share"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// sent passes a file over a Unix socket, as to another process.
func sent(t *testing.T, file *os.File) *os.File {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	conns := make([]*net.UnixConn, len(fds))
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		conns[i] = must(net.FileConn(f))(t).(*net.UnixConn)
		require.NoError(t, f.Close())
		defer func() { require.NoError(t, conns[i].Close()) }()
	}
	_, _, err = conns[0].WriteMsgUnix([]byte{1}, syscall.UnixRights(int(file.Fd())), nil)
	require.NoError(t, err)
	data, control := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := conns[1].ReadMsgUnix(data, control)
	require.NoError(t, err)
	messages := must(syscall.ParseSocketControlMessage(control[:n]))(t)
	rights := must(syscall.ParseUnixRights(&messages[0]))(t)
	require.Len(t, rights, 1)
	return os.NewFile(uintptr(rights[0]), "received")
}

func TestImport(t *testing.T) {
	device, pd := open(t)
	mr := must(pd.Alloc(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead))(t)
	defer func() { require.NoError(t, mr.Close()) }()
	made, err := share.ExportDevice(device)
	if testdevice.Soft() {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "export "+device.Name())
		return
	}
	exported := must(made, err)(t)
	received := sent(t, exported)
	require.NoError(t, exported.Close())
	defer func() { require.NoError(t, received.Close()) }()
	handle := must(share.ExportPD(pd))(t)
	require.Equal(t, pd.Raw().Handle, handle)
	export := must(share.ExportMR(mr))(t)

	c, err := share.ImportDevice(received)
	if errors.Is(err, errors.ErrUnsupported) {
		require.ErrorContains(t, err, "ibv_import_device (received)")
		t.Log(err)
		_, err = received.Stat()
		require.NoError(t, err, "the file is the caller's")
		_, err = share.ImportPD(device, handle)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Log(err)
		_, err = share.ImportMR(pd, export)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Log(err)
		return
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.Equal(t, device.Name(), c.Name())
	shared := must(share.ImportPD(c, handle))(t)
	imported := must(share.ImportMR(shared, export))(t)
	require.Equal(t, mr.Remote(), imported.Remote())
	require.Equal(t, mr.LKey(), imported.LKey())
	require.ErrorIs(t, shared.Close(), syscall.EBUSY)
	require.NoError(t, imported.Close())
	require.NoError(t, shared.Close())
}

func TestImportNoDevice(t *testing.T) {
	testdevice.Require(t)
	null := must(os.Open(os.DevNull))(t)
	defer func() { require.NoError(t, null.Close()) }()
	_, err := share.ImportDevice(null)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "ibv_import_device ("+os.DevNull+")")
}

// open returns a device with a domain.
func open(t *testing.T) (*ibverbs.Device, *ibverbs.PD) {
	t.Helper()
	found := testdevice.Require(t)
	testdevice.NoLeaks(t)
	device := must(ibverbs.Open(found.Name))(t)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	pd := must(device.AllocPD())(t)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	return device, pd
}

// must fails the test for an error and returns the value.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}
