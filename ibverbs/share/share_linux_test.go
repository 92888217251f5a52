// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/share"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
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
	exported := must(share.ExportDevice(device))(t)
	received := sent(t, exported)
	require.NoError(t, exported.Close())
	defer func() { require.NoError(t, received.Close()) }()
	handle := must(share.ExportPD(pd))(t)
	require.Equal(t, pd.Raw().Handle, handle)
	export := must(share.ExportMR(mr))(t)

	c, err := share.ImportDevice(received)
	if testdevice.Soft() && os.Getenv("VERBENA_LIMITS") == "" {
		require.NoError(t, err)
	}
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

// A queue pair of an imported domain sends from a region that the exporter has
// registered, also after the exporter has closed what it need not keep open.
func TestImportedTraffic(t *testing.T) {
	testdevice.Require(t).Have(t, testdevice.Imports)
	device, pd := open(t)
	mr := must(pd.Alloc(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
	defer func() { require.NoError(t, mr.Close()) }()
	file := must(share.ExportDevice(device))(t)
	c := must(share.ImportDevice(file))(t)
	defer func() { require.NoError(t, c.Close()) }()
	require.NoError(t, file.Close())
	domain := must(share.ImportPD(c, must(share.ExportPD(pd))(t)))(t)
	imported := must(share.ImportMR(domain, must(share.ExportMR(mr))(t)))(t)

	cq := must(c.CreateCQ(ibverbs.CQConfig{CompQueue: 4}))(t)
	qp := must(domain.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 2, RecvQueue: 1}))(t)
	self := must(qp.Addr(ibverbs.QPAddrConfig{}))(t)
	require.NoError(t, qp.ConnectTo(self, self, ibverbs.ConnectConfig{}))
	copy(mr.Bytes(), "hello")
	batch := must(ibverbs.NewSendBatch(1, 1))(t)
	require.NoError(t, batch.Write(1, imported.Remote().Sub(100, 5), ibverbs.SendSignaled, imported.Sub(0, 5)))
	wcs := make([]ibverbs.WC, 1)
	write := func() error {
		must(qp.PostSend(batch))(t)
		for end := time.Now().Add(30 * time.Second); must(cq.Poll(wcs))(t) == 0; {
			require.True(t, time.Now().Before(end), "no completion")
		}
		return wcs[0].Err()
	}
	require.NoError(t, write())
	require.Equal(t, "hello", string(mr.Bytes()[100:105]))
	require.ErrorIs(t, pd.Close(), syscall.EBUSY, "the region is the exporter's")

	require.NoError(t, imported.Close())
	var busy *ibverbs.BusyError
	require.ErrorAs(t, domain.Close(), &busy)
	require.NoError(t, qp.Close())
	require.NoError(t, cq.Close())
	require.NoError(t, domain.Close())
}

// A process that gets the file of another one's device in user space is told
// that it cannot import it.
func TestImportFromAnotherProcess(t *testing.T) {
	testdevice.Require(t).Have(t, testdevice.Imports)
	device, _ := open(t)
	if !testdevice.Soft() {
		return
	}
	file := must(share.ExportDevice(device))(t)
	defer func() { require.NoError(t, file.Close()) }()
	cmd := process.Command(t, "importer")
	cmd.ExtraFiles = []*os.File{file}
	p := process.Run(t, cmd)
	require.Zero(t, p.Wait(), p.Output())
	require.Equal(t, "ibv_import_device (import): operation not supported: true true\n", p.Stdout())
}

// runImporter imports a device whose file it has as a descriptor.
func runImporter(_ []string, stdout, _ io.Writer) int {
	const first = 3 // of the descriptors that a process is given
	file := os.NewFile(first, "import")
	_, err := share.ImportDevice(file)
	_, stat := file.Stat()
	fmt.Fprintln(stdout, fmt.Sprint(err)+":", errors.Is(err, errors.ErrUnsupported), stat == nil)
	return 0
}

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{"importer": runImporter})
	os.Exit(testdevice.Main(m, "Example"))
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
