// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// requireLibraries skips a test where the C libraries are not installed, after
// it has looked at the error.
func requireLibraries(t *testing.T) {
	t.Helper()
	_, err := librdmacm.EventStr(0)
	if err == nil {
		return
	}
	var missing *ibverbs.LibraryError
	require.ErrorAs(t, err, &missing)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	t.Skip(err)
}

// badSocket is a number that no rsocket has.
const badSocket = 60000

// TestErrno proves that a stub takes errno in the C call itself: goroutines
// that move from thread to thread, and calls that leave different errnos
// behind, each get their own.
func TestErrno(t *testing.T) {
	requireLibraries(t)
	calls := []struct {
		name string
		call func() error
		want error
	}{
		{"-1 and EBADF", func() error { return librdmacm.Rlisten(badSocket, 1) }, syscall.EBADF},
		{"EBADF as the result", func() error { return librdmacm.Rclose(badSocket) }, syscall.EBADF},
		{"-1 and EOPNOTSUPP", func() error { _, err := librdmacm.Rsocket(-1, 0, 0); return err }, syscall.EOPNOTSUPP},
		{"-1 and EBADF, of a variadic function", func() error {
			_, err := librdmacm.Rfcntl(badSocket, syscall.F_GETFL)
			return err
		}, syscall.EBADF},
		{"the same with an argument", func() error {
			_, err := librdmacm.RfcntlInt(badSocket, syscall.F_SETFL, syscall.O_NONBLOCK)
			return err
		}, syscall.EBADF},
		{"success", func() error { _, err := librdmacm.EventStr(0); return err }, nil},
	}
	if _, err := os.Stat("/dev/infiniband/rdma_cm"); err != nil {
		calls = append(calls, []struct {
			name string
			call func() error
			want error
		}{
			{"NULL and ENODEV", func() error { _, err := librdmacm.CreateEventChannel(); return err }, syscall.ENODEV},
			{"NULL and ENODEV, with a number", func() error { _, _, err := librdmacm.GetDevices(); return err }, syscall.ENODEV},
		}...)
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 400 {
				c := calls[(g+i)%len(calls)]
				if err := c.call(); !errors.Is(err, c.want) {
					t.Errorf("%s: got %v", c.name, err)
				}
				if i%8 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	group.Wait()
}

// TestNoDevice has what the low-level calls say on a machine without RDMA.
func TestNoDevice(t *testing.T) {
	requireLibraries(t)
	if _, err := os.Stat("/sys/class/infiniband_verbs"); err == nil {
		t.Skip("this machine has RDMA")
	}
	_, _, err := libibverbs.GetDeviceList()
	require.ErrorIs(t, err, syscall.ENOSYS)
	require.ErrorContains(t, err, "ibv_get_device_list: ")
	_, err = librdmacm.CreateEventChannel()
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_create_event_channel: no such device")
}

// TestNilIsRefused has calls that would make C follow NULL.
func TestNilIsRefused(t *testing.T) {
	for want, err := range map[string]error{
		"rdma_ack_cm_event: event is nil":            librdmacm.AckCmEvent(nil),
		"rdma_destroy_event_channel: channel is nil": librdmacm.DestroyEventChannel(nil),
		"ibv_free_device_list: list is nil":          libibverbs.FreeDeviceList(nil),
		"rgetsockname: addr is nil":                  librdmacm.Rgetsockname(badSocket, nil, nil),
	} {
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, syscall.EINVAL)
		var refused *ibverbs.ArgumentError
		require.ErrorAs(t, err, &refused)
	}
}

// TestOperationMissing has calls for objects whose provider lacks the
// operation. Some of these functions have no result, or any number for one.
func TestOperationMissing(t *testing.T) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	cq := &libibverbs.Cq{Context: new(libibverbs.Context)}
	pinner.Pin(cq.Context)
	_, slid := libibverbs.WcReadSlid(new(libibverbs.CqEx))
	_, poll := libibverbs.PollCq(cq, 200, new(libibverbs.Wc))
	for op, err := range map[string]error{
		"ibv_wr_send":         libibverbs.WrSend(new(libibverbs.QpEx)),
		"ibv_wr_complete":     libibverbs.WrComplete(new(libibverbs.QpEx)),
		"ibv_wc_read_slid":    slid,
		"ibv_poll_cq":         poll,
		"ibv_free_dm":         libibverbs.FreeDm(&libibverbs.Dm{Context: cq.Context}),
		"ibv_req_notify_cq":   libibverbs.ReqNotifyCq(cq, 0),
		"ibv_wc_read_tm_info": libibverbs.WcReadTmInfo(new(libibverbs.CqEx), new(libibverbs.WcTmInfo)),
	} {
		require.ErrorIs(t, err, syscall.EOPNOTSUPP, op)
		require.ErrorIs(t, err, errors.ErrUnsupported, op)
		require.ErrorContains(t, err, op+": ")
	}
}

// TestIDWithout has calls for an id that has no QP, no CQ and no PD. That
// rdma_reg_msgs sees the PD missing, and not ibv_reg_mr, shows that librdmacm
// brings libibverbs' functions along.
func TestIDWithout(t *testing.T) {
	requireLibraries(t)
	id, mr := new(librdmacm.CmId), new(libibverbs.Mr)
	_, reg := librdmacm.RegMsgs(id, nil, 0)
	_, send := librdmacm.GetSendComp(id, new(libibverbs.Wc))
	_, recv := librdmacm.GetRecvComp(id, new(libibverbs.Wc))
	for op, err := range map[string]error{
		"rdma_reg_msgs":      reg,
		"rdma_post_recvv":    librdmacm.PostRecvv(id, nil, nil, 0),
		"rdma_post_sendv":    librdmacm.PostSendv(id, nil, nil, 0, 0),
		"rdma_post_recv":     librdmacm.PostRecv(id, nil, nil, 1, mr), // longer than the region
		"rdma_post_read":     librdmacm.PostRead(id, nil, nil, 0, mr, 0, 0, 0),
		"rdma_post_write":    librdmacm.PostWrite(id, nil, nil, 0, nil, 0, 0, 0),
		"rdma_get_send_comp": send,
		"rdma_get_recv_comp": recv,
	} {
		require.ErrorIs(t, err, syscall.EINVAL, op)
		require.ErrorContains(t, err, op+": ")
	}
	for _, symbol := range []string{"ibv_reg_mr", "ibv_dereg_mr", "ibv_get_cq_event", "ibv_ack_cq_events"} {
		require.True(t, hasSymbol(t, "librdmacm.so.1", symbol), symbol)
	}
}

// TestSymbols calls functions that came late, on whatever library is
// installed. The objects are empty: a library that has the function is not
// called.
func TestSymbols(t *testing.T) {
	requireLibraries(t)
	tests := []struct {
		library, symbol, release, node string
		call                           func() error
	}{
		{"libibverbs.so.1", "ibv_query_port_speed", "62", "IBVERBS_1.16", func() error {
			_, err := libibverbs.QueryPortSpeed(new(libibverbs.Context), 1)
			return err
		}},
		{"librdmacm.so.1", "rdma_query_addrinfo", "60", "RDMACM_1.4", func() error {
			_, err := librdmacm.QueryAddrinfo(new(librdmacm.CmId))
			return err
		}},
		{"librdmacm.so.1", "repoll_create", "65", "RDMACM_1.5", func() error { _, err := librdmacm.RepollCreate(0); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.symbol, func(t *testing.T) {
			if hasSymbol(t, tt.library, tt.symbol) {
				t.Skipf("the installed %s has %s", tt.library, tt.symbol)
			}
			err := tt.call()
			var lacks *ibverbs.SymbolError
			require.ErrorAs(t, err, &lacks)
			require.Equal(t, ibverbs.SymbolError{
				Symbol: tt.symbol, Library: tt.library, Release: tt.release, Node: tt.node,
			}, *lacks)
			require.EqualError(t, err, fmt.Sprintf("%s: the installed %s does not have it; rdma-core %s added it (%s)",
				tt.symbol, tt.library, tt.release, tt.node))
			require.ErrorIs(t, err, errors.ErrUnsupported)
		})
	}
}

// inChild is set in the process that TestLibrariesMissing starts.
const inChild = "VERBENA_TEST_WITHOUT_LIBRARIES"

// TestLibrariesMissing shows what a program says on a machine where the
// libraries cannot be loaded. It runs itself with broken ones in front.
func TestLibrariesMissing(t *testing.T) {
	if os.Getenv(inChild) == "" {
		dir := t.TempDir()
		for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("not a library"), 0o600))
		}
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self, "-test.run=^TestLibrariesMissing$", "-test.count=1")
		cmd.Env = append(os.Environ(), inChild+"=1", "LD_LIBRARY_PATH="+dir)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	_, _, err := libibverbs.GetDeviceList()
	requireMissing(t, err, "libibverbs.so.1", "libibverbs1", "libibverbs")
	_, err = librdmacm.CreateEventChannel()
	requireMissing(t, err, "librdmacm.so.1", "librdmacm1", "librdmacm")
	require.EqualError(t, librdmacm.AckCmEvent(nil), "rdma_ack_cm_event: event is nil")
	require.Equal(t, "RDMA_CM_EVENT_ESTABLISHED", librdmacm.RDMA_CM_EVENT_ESTABLISHED.String())
}

func requireMissing(t *testing.T, err error, library, debian, fedora string) {
	t.Helper()
	var missing *ibverbs.LibraryError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, library, missing.Library)
	require.Contains(t, missing.Debian, debian)
	require.Contains(t, missing.Fedora, fedora)
	require.NotEmpty(t, missing.Reason)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, missing.Debian)
	require.ErrorContains(t, err, missing.Fedora)
}
