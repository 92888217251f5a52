// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"errors"
	"io/fs"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// op has no hint, so that texts here are the plain ones.
const op = "ibv_test"

// The ways of reporting an error, as the stubs call them.
var (
	status   = func(result int64, errno int32) error { return Status(op, result, errno) }
	code     = func(result int64, errno int32) error { return Code(op, result, errno) }
	count    = func(result int64, errno int32) error { return Count(op, result, errno) }
	poll     = func(result int64, errno int32) error { return Poll(op, result, 16, errno) }
	wait     = func(result int64, errno int32) error { return Wait(op, result, 16, errno) }
	rereg    = func(result int64, errno int32) error { return Rereg(result, errno) }
	addrinfo = func(result int64, errno int32) error { return Addrinfo(op, result, errno) }
	null     = func(_ int64, errno int32) error { return Null(op, errno) }
)

const (
	enoent      = int32(syscall.ENOENT)
	einval      = int32(syscall.EINVAL)
	enomem      = int32(syscall.ENOMEM)
	enospc      = int32(syscall.ENOSPC)
	enodev      = int32(syscall.ENODEV)
	opnotsupp   = int64(syscall.EOPNOTSUPP)
	ebadf       = int64(syscall.EBADF)
	minusENOMEM = -int64(syscall.ENOMEM)
)

// TestClasses has what each way of reporting makes of a result and an errno;
// 0 means no error.
func TestClasses(t *testing.T) {
	tests := []struct {
		name   string
		read   func(result int64, errno int32) error
		result int64
		errno  int32
		want   syscall.Errno
	}{
		{"status: success", status, 0, 0, 0},
		{"status: success with errno left over", status, 0, enospc, 0}, // rdma_resolve_addr does so
		{"status: success with negative errno left over", status, 0, -einval, 0},
		{"status: -1 with errno", status, -1, enodev, syscall.ENODEV},
		{"status: -1 with negative errno", status, -1, -einval, syscall.EINVAL}, // rdma_post_send on siw
		{"status: -1 without errno", status, -1, 0, syscall.EIO},
		{"status: -1 moved to errno", status, -1, -1, syscall.EIO}, // rdma_resolve_addrinfo, rdma_post_recv on mthca
		{"status: -errno", status, minusENOMEM, 0, syscall.ENOMEM}, // older librdmacm
		{"status: -errno with another errno", status, minusENOMEM, enoent, syscall.ENOMEM},
		{"status: the kernel's own errno", status, -1, 524, syscall.EOPNOTSUPP}, // rdma_join_multicast, IPv6 on RoCE v2
		{"status: errno as the result", status, ebadf, 0, syscall.EBADF},        // rclose

		{"code: success", code, 0, 0, 0},
		{"code: success with errno left over", code, 0, enoent, 0},
		{"code: errno as the result", code, int64(enoent), 0, syscall.ENOENT}, // ibv_start_poll of an empty CQ
		{"code: errno as the result, not errno", code, ebadf, enoent, syscall.EBADF},
		{"code: -errno of a provider", code, minusENOMEM, 0, syscall.ENOMEM}, // siw
		{"code: -1 of a provider with errno", code, -1, enomem, syscall.ENOMEM},
		{"code: -1 of a provider without errno", code, -1, 0, syscall.EIO}, // mthca
		{"code: without the operation", code, opnotsupp, int32(opnotsupp), syscall.EOPNOTSUPP},

		{"count: none", count, 0, 0, 0},
		{"count: some", count, 7, 0, 0},
		{"count: some with errno left over", count, 7, enoent, 0},
		{"count: many", count, 1 << 40, 0, 0},
		{"count: -1 with errno", count, -1, enodev, syscall.ENODEV},
		{"count: -1 without errno", count, -1, 0, syscall.EIO},      // ibv_get_device_index
		{"count: -errno", count, -opnotsupp, 0, syscall.EOPNOTSUPP}, // ibv_query_gid_table

		{"poll: empty", poll, 0, 0, 0},
		{"poll: some", poll, 3, enoent, 0},
		{"poll: full", poll, 16, 0, 0},
		{"poll: more than asked for", poll, opnotsupp, 0, syscall.EOPNOTSUPP}, // libibverbs without the operation
		{"poll: none of fewer than none", func(result int64, errno int32) error { return Poll(op, result, -1, errno) }, 0, 0, 0},
		{"poll: -1", poll, -1, 0, syscall.EIO},
		{"poll: -1 with errno", poll, -1, enodev, syscall.ENODEV},
		{"poll: -2 is no errno", poll, -2, 0, syscall.EIO}, // mlx5's CQ_POLL_ERR
		{"poll: -errno", poll, minusENOMEM, 0, syscall.ENOMEM},

		{"wait: none", wait, 0, 0, 0},
		{"wait: full", wait, 16, 0, 0},
		{"wait: errno as the result", wait, int64(einval), 0, syscall.EINVAL}, // repoll_wait of 16 events
		{"wait: none of fewer than none", func(result int64, errno int32) error { return Wait(op, result, -1, errno) }, 0, 0, 0},
		{"wait: -1 with errno", wait, -1, int32(syscall.EINTR), syscall.EINTR},

		{"rereg: success", rereg, 0, 0, 0},
		{"rereg: success with errno left over", rereg, 0, enoent, 0},
		{"rereg: bad input", rereg, -1, 0, syscall.EINVAL},
		{"rereg: bad input with errno", rereg, -1, int32(opnotsupp), syscall.EOPNOTSUPP},
		{"rereg: fork protection", rereg, -2, enomem, syscall.ENOMEM},
		{"rereg: command without errno", rereg, -4, 0, syscall.EIO},
		{"rereg: command", rereg, -4, enomem, syscall.ENOMEM},

		{"addrinfo: success", addrinfo, 0, 0, 0},
		{"addrinfo: success with errno left over", addrinfo, 0, enodev, 0},
		{"addrinfo: -1 with errno", addrinfo, -1, enodev, syscall.ENODEV}, // no device
		{"addrinfo: -1 with negative errno", addrinfo, -1, -einval, syscall.EINVAL},
		{"addrinfo: EAI_SYSTEM", addrinfo, -11, enoent, syscall.ENOENT},
		{"addrinfo: EAI_SYSTEM without errno", addrinfo, -11, 0, syscall.EIO},
		{"addrinfo: beyond the codes", addrinfo, 5, einval, syscall.EINVAL},

		{"null: errno", null, 0, enodev, syscall.ENODEV},
		{"null: negative errno", null, 0, -enomem, syscall.ENOMEM},
		{"null: no errno", null, 0, 0, syscall.EIO},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.read(tt.result, tt.errno)
			if tt.want == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tt.want)
			var errno syscall.Errno
			require.ErrorAs(t, err, &errno)
			require.Equal(t, tt.want, errno)
			require.Contains(t, err.Error(), tt.want.Error())
		})
	}
}

// TestAddrinfoCodes has the results that no errno stands for.
func TestAddrinfoCodes(t *testing.T) {
	tests := []struct {
		result int64
		errno  int32
		text   string
		is     syscall.Errno // 0: none says the same
	}{
		{-1, 0, "bad flags", syscall.EINVAL}, // EAI_BADFLAGS is -1 too
		{-2, 0, "unknown host or service", syscall.ENOENT},
		{-2, enomem, "unknown host or service", syscall.ENOENT}, // errno says nothing then
		{-3, 0, "temporary failure in name resolution", syscall.EAGAIN},
		{-4, 0, "permanent failure in name resolution", 0},
		{-6, 0, "address family not supported", syscall.EAFNOSUPPORT},
		{-7, 0, "socket type not supported", syscall.ESOCKTNOSUPPORT},
		{-8, 0, "service not supported for the socket type", 0},
		{-10, 0, "out of memory", syscall.ENOMEM},
		{-5, 0, "name resolution failed with code -5", 0},
		{-105, 0, "name resolution failed with code -105", 0},
	}
	for _, tt := range tests {
		err := Addrinfo("rdma_getaddrinfo", tt.result, tt.errno)
		var e *AddrInfoError
		require.ErrorAs(t, err, &e)
		require.EqualValues(t, tt.result, e.Code)
		require.EqualError(t, err, "rdma_getaddrinfo: "+tt.text)
		var errno syscall.Errno
		require.Equal(t, tt.is != 0, errors.As(err, &errno))
		require.Equal(t, tt.is, errno)
	}
}

func TestReregError(t *testing.T) {
	tests := []struct {
		result   int64
		errno    int32
		text     string
		unusable bool
	}{
		{-1, 0, "ibv_rereg_mr: invalid argument (bad input)", false},
		{-2, enomem, "ibv_rereg_mr: cannot allocate memory (fork protection of the new memory)", false},
		{-3, enomem, "ibv_rereg_mr: cannot allocate memory (fork protection of the old memory)", false},
		{-4, enomem, "ibv_rereg_mr: cannot allocate memory (command, the region is unusable)", true},
		{-5, enomem, "ibv_rereg_mr: cannot allocate memory (command and fork protection, the region is unusable)", true},
		{-4, int32(opnotsupp), "ibv_rereg_mr: operation not supported (command)", false},
		{-5, int32(opnotsupp), "ibv_rereg_mr: operation not supported (command and fork protection)", false},
		{-6, enomem, "ibv_rereg_mr: cannot allocate memory (code -6)", true},
		{95, enomem, "ibv_rereg_mr: cannot allocate memory (code 95)", false},
	}
	for _, tt := range tests {
		err := Rereg(tt.result, tt.errno)
		var e *ReregError
		require.ErrorAs(t, err, &e)
		require.EqualError(t, err, tt.text)
		require.EqualValues(t, tt.result, e.Code)
		require.Equal(t, tt.unusable, e.Unusable())
	}
	err := &ReregError{Object: "MR 0x7", Code: -1, Errno: syscall.EINVAL}
	require.EqualError(t, err, "ibv_rereg_mr (MR 0x7): invalid argument (bad input)")
}

// TestIs shows what errors.Is says of each kind of error.
func TestIs(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		target error
		want   bool
	}{
		{"the errno", Status(op, -1, enodev), syscall.ENODEV, true},
		{"another errno", Status(op, -1, enodev), syscall.EINVAL, false},
		{"permission", Status(op, -1, int32(syscall.EACCES)), fs.ErrPermission, true},
		{"not supported by the device", Code(op, opnotsupp, 0), errors.ErrUnsupported, true},
		{"not supported by the kernel", Null(op, int32(syscall.ENOSYS)), errors.ErrUnsupported, true},
		{"a failure", Code(op, ebadf, 0), errors.ErrUnsupported, false},
		{"nil argument", Nil(op, "qp"), syscall.EINVAL, true},
		{"a refusal", Refuse(op, "", "no device"), syscall.EINVAL, true},
		{"a refusal for another reason", Argument(op, "", InvalidAs(syscall.EBUSY, "busy")), syscall.EBUSY, true},
		{"a refusal for another reason is not invalid", Argument(op, "", InvalidAs(syscall.EBUSY, "busy")), syscall.EINVAL, false},
		{"busy", Busy("pd", []string{"mr"}), syscall.EBUSY, true},
		{"rereg", Rereg(-4, enomem), syscall.ENOMEM, true},
		{"missing symbol", &SymbolError{}, errors.ErrUnsupported, true},
		{"missing library", &LibraryError{}, errors.ErrUnsupported, true},
		{"static program", &StaticError{}, errors.ErrUnsupported, true},
		{"platform", Platform(op), errors.ErrUnsupported, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, errors.Is(tt.err, tt.target))
		})
	}
}

func TestTexts(t *testing.T) {
	require.EqualError(t, Status(op, -1, enodev), "ibv_test: no such device")
	require.EqualError(t, &Error{Op: op, Object: "rxe0", Errno: syscall.ENODEV}, "ibv_test (rxe0): no such device")
	require.EqualError(t, Refuse(op, "rxe0", "size is %d", 7), "ibv_test (rxe0): size is 7")
	require.EqualError(t, Argument("", "", Invalid("no device")), "no device")
	require.EqualError(t, Nil("ibv_poll_cq", "cq"), "ibv_poll_cq: cq is nil")
	require.EqualError(t, Platform(op), "ibv_test: "+whyNot(runtime.GOOS, runtime.GOARCH))
	require.Equal(t, "this program was built without cgo: build it again with CGO_ENABLED=1 where there is a C compiler, such as gcc",
		whyNot("linux", "arm64"))
	const needs = "RDMA needs Linux on one of amd64, arm64, loong64, ppc64le, riscv64, s390x; this program was built for "
	require.Equal(t, needs+"windows/amd64", whyNot("windows", "amd64"))
	require.Equal(t, needs+"linux/386", whyNot("linux", "386"))
	require.EqualError(t, &SymbolError{Symbol: "ibv_new", Library: "libibverbs.so.1", Release: "65", Node: "IBVERBS_1.18"},
		"ibv_new: the installed libibverbs.so.1 does not have it; rdma-core 65 added it (IBVERBS_1.18)")
	require.EqualError(t, &SymbolError{Symbol: "ibv_inline", Library: "libibverbs.so.1", Release: "65"},
		"ibv_inline: the installed libibverbs.so.1 does not have it; rdma-core 65 added it")
	require.EqualError(t, &SymbolError{Symbol: "ibv_odd", Library: "libibverbs.so.1"},
		"ibv_odd: the installed libibverbs.so.1 does not have it")
	require.EqualError(t, &LibraryError{Library: "libx.so.1", Debian: "libx1", Fedora: "libx", Reason: "not found"},
		"cannot load libx.so.1 (on Debian and Ubuntu install libx1, on Fedora libx, or use package softroce, which needs no library): not found; verbena doctor says more")
	require.EqualError(t, &LibraryError{Library: "libibumad.so.3", Debian: "libibumad3", Fedora: "libibumad", Reason: "not found"},
		"cannot load libibumad.so.3 (on Debian and Ubuntu install libibumad3, on Fedora libibumad): not found")
	require.NotContains(t, (&LibraryError{Library: "libibmad.so.5"}).Error(), "softroce")
}

func TestHints(t *testing.T) {
	require.ErrorContains(t, Null("ibv_reg_mr", enomem), ": "+unsure)
	require.NotContains(t, Null("ibv_reg_mr", einval).Error(), unsure, "nothing to look at")
	t.Cleanup(func() { inProgram.Store(false) })
	InProgram()
	require.ErrorContains(t, Null("ibv_get_device_list", int32(syscall.ENOSYS)), ": "+unsure, "the machine has nothing to do with it")
	require.ErrorContains(t, Null("ibv_reg_dmabuf_mr", int32(syscall.EOPNOTSUPP)), ": "+unmappable)
	require.Empty(t, LockedHint(1<<40))
	require.Empty(t, GroupHint("rxe0"))
	require.Empty(t, HandlesHint())
	require.NotEmpty(t, MappingHint(0, 1, true), "how memory is mapped counts for it, too")
}

type converted struct{ error }

func TestConvert(t *testing.T) {
	t.Cleanup(func() { converters = nil })
	Convert(func(err error) error {
		if e, ok := err.(*Error); ok {
			return converted{e}
		}
		return nil
	})
	require.IsType(t, converted{}, Status(op, -1, enodev))
	require.IsType(t, &ArgumentError{}, Nil(op, "cq"), "left alone")
	Convert(func(err error) error { return converted{err} })
	require.IsType(t, converted{}, Nil(op, "cq"))
}
