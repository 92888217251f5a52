// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

const unsupported = syscall.EOPNOTSUPP

// late are the functions that came after rdma-core 44, in an order in which
// they can be called, with what 65.0 says of them with Soft-RoCE: 0 where it
// does what it is asked to.
var late = []struct {
	function string
	release  string
	call     func(o *objects) error
	want     syscall.Errno
}{
	{"ibv_query_port_speed", "62", func(o *objects) error { return second(verbs.QueryPortSpeed(o.context, 1)) }, unsupported},
	{"ibv_alloc_dmah", "59", func(o *objects) error { return second(verbs.AllocDmah(o.context, new(verbs.DmahInitAttr))) }, unsupported},
	{"ibv_dealloc_dmah", "59", func(o *objects) error { return verbs.DeallocDmah(&verbs.Dmah{Context: o.context}) }, unsupported},
	{"ibv_reg_mr_ex", "59", registerEx, 0},
	{"ibv_dm_export_dmabuf_fd", "62", func(o *objects) error { return second(verbs.DmExportDmabufFd(&verbs.Dm{Context: o.context})) }, unsupported},
	{"ibv_alloc_buf", "64", allocBuf, 0},
	{"ibv_reg_buf_mr", "64", registerBuf, 0},
	{"ibv_export_buf_dmabuf_fd", "65", func(o *objects) error { return second(verbs.ExportBufDmabufFd(o.buf)) }, syscall.ENODATA},
	{"ibv_free_buf", "64", func(o *objects) error { return verbs.FreeBuf(o.buf) }, 0},

	{"ibv_query_comp_cntr_caps", "65", func(o *objects) error { return verbs.QueryCompCntrCaps(o.context, new(verbs.CompCntrCaps)) }, unsupported},
	{"ibv_create_comp_cntr", "65", func(o *objects) error {
		return second(verbs.CreateCompCntr(o.context, new(verbs.CompCntrInitAttr)))
	}, unsupported},
	{"ibv_destroy_comp_cntr", "65", func(o *objects) error { return verbs.DestroyCompCntr(o.counter()) }, unsupported},
	{"ibv_set_comp_cntr", "65", func(o *objects) error { return verbs.SetCompCntr(o.counter(), 1) }, unsupported},
	{"ibv_set_err_comp_cntr", "65", func(o *objects) error { return verbs.SetErrCompCntr(o.counter(), 1) }, unsupported},
	{"ibv_inc_comp_cntr", "65", func(o *objects) error { return verbs.IncCompCntr(o.counter(), 1) }, unsupported},
	{"ibv_inc_err_comp_cntr", "65", func(o *objects) error { return verbs.IncErrCompCntr(o.counter(), 1) }, unsupported},
	{"ibv_read_comp_cntr", "65", func(o *objects) error { return second(verbs.ReadCompCntr(o.counter())) }, unsupported},
	{"ibv_read_err_comp_cntr", "65", func(o *objects) error { return second(verbs.ReadErrCompCntr(o.counter())) }, unsupported},
	{"ibv_qp_attach_comp_cntr", "65", func(o *objects) error {
		return verbs.QpAttachCompCntr(o.qp, o.counter(), new(verbs.QpAttachCompCntrAttr))
	}, unsupported},

	{"rdma_resolve_addrinfo", "60", resolveAddrinfo, 0},
	{"rdma_query_addrinfo", "60", queryAddrinfo, 0},
	{"rdma_write_cm_event", "60", writeEvent, 0},

	{"repoll_create", "65", createRepoll, 0}, // testRepoll does more
	{"repoll_ctl", "65", func(*objects) error { return cm.RepollCtl(-1, syscall.EPOLL_CTL_DEL, -1, nil) }, syscall.EBADF},
	{"repoll_wait", "65", func(*objects) error {
		return second(cm.RepollWait(-1, unsafe.Pointer(new(syscall.EpollEvent)), 1, 0))
	}, syscall.EINVAL},
}

// withoutEvents is what differs with a kernel that programs cannot write
// events with.
var withoutEvents = map[string]syscall.Errno{
	"rdma_resolve_addrinfo": syscall.EIO, // librdmacm loses the errno
	"rdma_query_addrinfo":   syscall.ENOENT,
	"rdma_write_cm_event":   syscall.EINVAL,
}

func second[T any](_ T, err error) error { return err }

// testFunctions calls them all. A library that lacks one says which and since
// when; one that has it never does.
func testFunctions(t *testing.T, version string) {
	o, events := newObjects(t), kernelWritesEvents(t)
	for _, f := range late {
		t.Run(f.function, func(t *testing.T) {
			err := f.call(o)
			t.Logf("%s with %s: %v", f.function, version, err)
			var lacks *ibverbs.SymbolError
			if version == "44.0" {
				require.ErrorIs(t, err, errors.ErrUnsupported)
				require.ErrorAs(t, err, &lacks)
				require.Equal(t, f.function, lacks.Symbol)
				require.Equal(t, f.release, lacks.Release)
				require.ErrorContains(t, err, f.function+": the installed ")
				require.ErrorContains(t, err, "; rdma-core "+f.release+" added it")
				return
			}
			require.NotErrorAs(t, err, &lacks)
			want := f.want
			if other, differs := withoutEvents[f.function]; differs && !events {
				want = other
			}
			if want == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, want)
		})
	}
}

// kernelWritesEvents reports whether the kernel is Linux 6.17 or later.
func kernelWritesEvents(t *testing.T) bool {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	require.NoError(t, err)
	var major, minor int
	_, err = fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	require.NoError(t, err)
	t.Logf("Linux %s", bytes.TrimSpace(release))
	return major > 6 || major == 6 && minor >= 17
}
