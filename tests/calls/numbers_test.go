// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package calls

import (
	"syscall"
	"testing"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
)

const addressInUse = "rdma_listen: address already in use"

// status: 0, or -1 with errno.
func TestStatus(t *testing.T) {
	requireReadings(t, []reading{
		// function, result, errno, value, error
		{"rdma_listen", 0, 0, nil, 0, ""},
		{"rdma_resolve_addr", 0, enospc, nil, 0, ""}, // what errno has after a success says nothing
		{"rdma_listen", 0, -einval, nil, 0, ""},
		{"rdma_listen", -1, eaddrinuse, nil, syscall.EADDRINUSE, addressInUse},
		{"ibv_get_async_event", -1, eagain, nil, syscall.EAGAIN, "ibv_get_async_event: resource temporarily unavailable"},

		// Older librdmacm has -errno as the result; then errno says nothing.
		{"rdma_listen", -int64(eaddrinuse), 0, nil, syscall.EADDRINUSE, addressInUse},
		{"rdma_listen", -int64(eaddrinuse), enoent, nil, syscall.EADDRINUSE, addressInUse},

		// A provider's -errno is moved to errno, and so are a peer's reasons to
		// reject, here 28: they cannot be told from errnos.
		{"rdma_listen", -1, -einval, nil, syscall.EINVAL, "rdma_listen: invalid argument"},
		{"rdma_get_request", -1, -28, nil, syscall.ENOSPC, "rdma_get_request: no space left on device"},
		// Here the result moves to errno, -1 or an EAI code: the cause is lost.
		{"rdma_resolve_addrinfo", -1, -1, nil, syscall.EIO, "rdma_resolve_addrinfo: input/output error"},
		{"rdma_resolve_addrinfo", -1, -2, nil, syscall.ENOENT, "rdma_resolve_addrinfo: no such file or directory"},

		// Some calls fail without errno.
		{"rdma_join_multicast", -1, 0, nil, syscall.EIO, "rdma_join_multicast: input/output error"},
		{"ibv_query_gid", -1, 0, nil, syscall.EIO, "ibv_query_gid: input/output error"},
	})
}

// code: 0, or the errno as the result.
func TestCode(t *testing.T) {
	requireReadings(t, []reading{
		{"ibv_dealloc_pd", 0, 0, nil, 0, ""},
		{"ibv_post_send", 0, enomem, nil, 0, ""},
		{"ibv_dealloc_pd", int64(ebusy), 0, nil, syscall.EBUSY, "ibv_dealloc_pd: device or resource busy"},
		{"ibv_dealloc_pd", int64(ebusy), enoent, nil, syscall.EBUSY, "ibv_dealloc_pd: device or resource busy"},
		{"rclose", int64(syscall.EBADF), 0, nil, syscall.EBADF, "rclose: bad file descriptor"},

		{"ibv_post_send", int64(enomem), 0, nil, syscall.ENOMEM, "ibv_post_send: cannot allocate memory"},
		{"ibv_post_recv", int64(enomem), 0, nil, syscall.ENOMEM, "ibv_post_recv: cannot allocate memory"},
		{"ibv_post_srq_recv", int64(enomem), 0, nil, syscall.ENOMEM, "ibv_post_srq_recv: cannot allocate memory"},
		{"ibv_req_notify_cq", int64(einval), 0, nil, syscall.EINVAL, "ibv_req_notify_cq: invalid argument"},
		{"ibv_wr_complete", int64(enomem), 0, nil, syscall.ENOMEM, "ibv_wr_complete: cannot allocate memory"},
		{"ibv_start_poll", int64(enoent), 0, nil, syscall.ENOENT, "ibv_start_poll: no such file or directory"}, // empty
		{"ibv_advise_mr", int64(eopnotsupp), 0, nil, syscall.EOPNOTSUPP, "ibv_advise_mr: operation not supported"},

		// siw, cxgb4 and others give -errno.
		{"ibv_post_send", -int64(enomem), 0, nil, syscall.ENOMEM, "ibv_post_send: cannot allocate memory"},
		{"ibv_post_send", -int64(enomem), enoent, nil, syscall.ENOMEM, "ibv_post_send: cannot allocate memory"},
		// mthca gives -1, as a failed system call inside does, with errno.
		{"ibv_post_recv", -1, 0, nil, syscall.EIO, "ibv_post_recv: input/output error"},
		{"ibv_post_srq_recv", -1, enomem, nil, syscall.ENOMEM, "ibv_post_srq_recv: cannot allocate memory"},
	})
}

// count: a number, or -1 with errno.
func TestCount(t *testing.T) {
	requireReadings(t, []reading{
		{"rrecv", 0, 0, 0, 0, ""},
		{"rrecv", 64, eagain, 64, 0, ""},
		{"rrecv", 1 << 40, 0, 1 << 40, 0, ""},
		{"rsocket", 5, enodev, 5, 0, ""},
		{"rsocket", -1, enodev, nil, syscall.ENODEV, "rsocket: no such device"},
		{"rsocket", -int64(enodev), 0, nil, syscall.ENODEV, "rsocket: no such device"},
		{"rrecv", -1, -einval, nil, syscall.EINVAL, "rrecv: invalid argument"}, // a provider's -errno in errno
		{"riowrite", 64, 0, 64, 0, ""},
		{"riowrite", -1, enomem, nil, syscall.ENOMEM, "riowrite: cannot allocate memory"}, // (size_t)-1
		{"ibv_get_pkey_index", -1, 0, nil, syscall.EIO, "ibv_get_pkey_index: input/output error"},
	})
}

// negative: a number, or -errno.
func TestNegative(t *testing.T) {
	requireReadings(t, []reading{
		{"ibv_query_gid_table", 0, 0, 0, 0, ""},
		{"ibv_query_gid_table", 12, enoent, 12, 0, ""},
		{"ibv_query_gid_table", -int64(einval), 0, nil, syscall.EINVAL, "ibv_query_gid_table: invalid argument"},
		{"ibv_query_gid_table", -int64(einval), enoent, nil, syscall.EINVAL, "ibv_query_gid_table: invalid argument"},
		{"ibv_query_gid_table", -1, enodev, nil, syscall.ENODEV, "ibv_query_gid_table: no such device"},
	})
}

// poll: the number of completions, or a provider's own negative code.
func TestPoll(t *testing.T) {
	requireReadings(t, []reading{
		{"ibv_poll_cq", 0, 0, 0, 0, ""},
		{"ibv_poll_cq", 3, enoent, 3, 0, ""},
		{"ibv_poll_cq", room, 0, room, 0, ""},
		{"ibv_poll_cq", -1, 0, nil, syscall.EIO, "ibv_poll_cq: input/output error"},
		{"ibv_poll_cq", -1, enodev, nil, syscall.ENODEV, "ibv_poll_cq: no such device"},
		{"ibv_poll_cq", -2, 0, nil, syscall.EIO, "ibv_poll_cq: input/output error"}, // mlx5: not ENOENT
		{"ibv_poll_cq", -int64(enomem), 0, nil, syscall.ENOMEM, "ibv_poll_cq: cannot allocate memory"},
	})
}

// wait: the number of events, or a positive errno.
func TestWait(t *testing.T) {
	requireReadings(t, []reading{
		{"repoll_wait", 0, 0, 0, 0, ""},
		{"repoll_wait", room, enoent, room, 0, ""},
		{"repoll_wait", int64(einval), 0, nil, syscall.EINVAL, "repoll_wait: invalid argument"},
		{"repoll_wait", -1, enomem, nil, syscall.ENOMEM, "repoll_wait: cannot allocate memory"},
		{"repoll_wait", 9, 0, 9, 0, ""}, // EBADF could not be told from 9 events
	})
}

// void and value: whatever C returns and leaves in errno, nothing has failed.
func TestValue(t *testing.T) {
	requireReadings(t, []reading{
		{"rdma_destroy_ep", -1, ebusy, nil, 0, ""},
		{"ibv_wr_send", -1, enomem, nil, 0, ""},
		{"ibv_get_device_index", 7, 0, int32(7), 0, ""},
		{"ibv_get_device_index", -1, enoent, int32(-1), 0, ""}, // the kernel does not tell
		{"ibv_rate_to_mbps", -1, 0, int32(-1), 0, ""},          // no rate
		{"ibv_wc_read_byte_len", 0xffffffff, 0, uint32(0xffffffff), 0, ""},
		{"ibv_get_device_guid", -1, 0, verbs.Be64(0xffffffffffffffff), 0, ""},
		{"rdma_get_src_port", 0xffff, 0, verbs.Be16(0xffff), 0, ""},
	})
}
