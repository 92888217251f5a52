package ibverbs_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
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
	r := open(t)
	mr := r.alloc(4096, anyAccess)
	exported := must(r.c.Export())(t)
	received := sent(t, exported)
	require.NoError(t, exported.Close())
	defer func() { require.NoError(t, received.Close()) }()
	require.Equal(t, r.pd.Raw().Handle, r.pd.Handle())

	c, err := ibverbs.ImportDevice(received)
	if errors.Is(err, errors.ErrUnsupported) {
		require.ErrorContains(t, err, "ibv_import_device (received)")
		t.Log(err)
		_, err = received.Stat()
		require.NoError(t, err, "the file is the caller's")
		_, err = r.c.ImportPD(r.pd.Handle())
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Log(err)
		_, err = r.pd.ImportMR(mr.Export())
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Log(err)
		return
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.Equal(t, r.c.Name(), c.Name())
	pd := must(c.ImportPD(r.pd.Handle()))(t)
	imported := must(pd.ImportMR(mr.Export()))(t)
	require.Equal(t, mr.Remote(), imported.Remote())
	require.Equal(t, mr.LKey(), imported.LKey())
	require.ErrorIs(t, pd.Close(), syscall.EBUSY)
	require.NoError(t, imported.Close())
	require.NoError(t, pd.Close())
}

func TestImportNoDevice(t *testing.T) {
	open(t)
	null := must(os.Open(os.DevNull))(t)
	defer func() { require.NoError(t, null.Close()) }()
	_, err := ibverbs.ImportDevice(null)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "ibv_import_device ("+os.DevNull+")")
}
