// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package calls

import (
	"unsafe"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
)

// room is for how many completions or events the calls below have memory.
const room = 16

// calls are the Go functions of C functions, called on an object of C's. What
// they return beside an error is the function's value, nil if it has none.
var calls = map[string]func(o unsafe.Pointer) (any, error){
	"rdma_listen": func(o unsafe.Pointer) (any, error) { return nil, cm.Listen((*cm.CmId)(o), 1) },
	"rdma_resolve_addr": func(o unsafe.Pointer) (any, error) {
		return nil, cm.ResolveAddr((*cm.CmId)(o), nil, (*cm.Sockaddr)(o), 1)
	},
	"rdma_get_request": func(o unsafe.Pointer) (any, error) { return value(cm.GetRequest((*cm.CmId)(o))) },
	"rdma_join_multicast": func(o unsafe.Pointer) (any, error) {
		return nil, cm.JoinMulticast((*cm.CmId)(o), (*cm.Sockaddr)(o), nil)
	},
	"rdma_resolve_addrinfo": func(o unsafe.Pointer) (any, error) { return nil, cm.ResolveAddrinfo((*cm.CmId)(o), "peer", "", nil) },
	"rdma_destroy_ep":       func(o unsafe.Pointer) (any, error) { return nil, cm.DestroyEp((*cm.CmId)(o)) },
	"rdma_get_src_port":     func(o unsafe.Pointer) (any, error) { return value(cm.GetSrcPort((*cm.CmId)(o))) },
	"rsocket":               func(unsafe.Pointer) (any, error) { return value(cm.Rsocket(2, 1, 0)) },
	"rclose":                func(unsafe.Pointer) (any, error) { return nil, cm.Rclose(3) },
	"rrecv":                 func(o unsafe.Pointer) (any, error) { return value(cm.Rrecv(3, o, 64, 0)) },
	"riowrite":              func(o unsafe.Pointer) (any, error) { return value(cm.Riowrite(3, o, 64, 0, 0)) },
	"repoll_wait":           func(o unsafe.Pointer) (any, error) { return value(cm.RepollWait(3, o, room, 0)) },

	"ibv_query_gid": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.QueryGid((*verbs.Context)(o), 1, 0, (*verbs.Gid)(o))
	},
	"ibv_get_async_event": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.GetAsyncEvent((*verbs.Context)(o), (*verbs.AsyncEvent)(o))
	},
	"ibv_dealloc_pd":       func(o unsafe.Pointer) (any, error) { return nil, verbs.DeallocPd((*verbs.Pd)(o)) },
	"ibv_get_device_index": func(o unsafe.Pointer) (any, error) { return value(verbs.GetDeviceIndex((*verbs.Device)(o))) },
	"ibv_get_device_guid":  func(o unsafe.Pointer) (any, error) { return value(verbs.GetDeviceGuid((*verbs.Device)(o))) },
	"ibv_rate_to_mbps":     func(unsafe.Pointer) (any, error) { return value(verbs.RateToMbps(1)) },
	"ibv_query_gid_table": func(o unsafe.Pointer) (any, error) {
		return value(verbs.QueryGidTable((*verbs.Context)(o), (*verbs.GidEntry)(o), room, 0))
	},
	"ibv_get_pkey_index": func(o unsafe.Pointer) (any, error) { return value(verbs.GetPkeyIndex((*verbs.Context)(o), 1, 0xffff)) },
	"ibv_alloc_pd":       func(o unsafe.Pointer) (any, error) { return value(verbs.AllocPd((*verbs.Context)(o))) },
	"ibv_open_device":    func(o unsafe.Pointer) (any, error) { return value(verbs.OpenDevice((*verbs.Device)(o))) },
	"ibv_qp_to_qp_ex":    func(o unsafe.Pointer) (any, error) { return value(verbs.QpToQpEx((*verbs.Qp)(o))) },

	// Operations of the provider, which the object has.
	"ibv_post_send": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.PostSend((*verbs.Qp)(o), (*verbs.SendWr)(o), (**verbs.SendWr)(o))
	},
	"ibv_post_recv": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.PostRecv((*verbs.Qp)(o), (*verbs.RecvWr)(o), (**verbs.RecvWr)(o))
	},
	"ibv_post_srq_recv": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.PostSrqRecv((*verbs.Srq)(o), (*verbs.RecvWr)(o), (**verbs.RecvWr)(o))
	},
	"ibv_poll_cq":       func(o unsafe.Pointer) (any, error) { return value(verbs.PollCq((*verbs.Cq)(o), room, (*verbs.Wc)(o))) },
	"ibv_req_notify_cq": func(o unsafe.Pointer) (any, error) { return nil, verbs.ReqNotifyCq((*verbs.Cq)(o), 0) },
	"ibv_start_poll": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.StartPoll((*verbs.CqEx)(o), (*verbs.PollCqAttr)(o))
	},
	"ibv_wc_read_byte_len": func(o unsafe.Pointer) (any, error) { return value(verbs.WcReadByteLen((*verbs.CqEx)(o))) },
	"ibv_wr_send":          func(o unsafe.Pointer) (any, error) { return nil, verbs.WrSend((*verbs.QpEx)(o)) },
	"ibv_wr_complete":      func(o unsafe.Pointer) (any, error) { return nil, verbs.WrComplete((*verbs.QpEx)(o)) },
	"ibv_advise_mr": func(o unsafe.Pointer) (any, error) {
		return nil, verbs.AdviseMr((*verbs.Pd)(o), 0, 0, (*verbs.Sge)(o), 1)
	},
	"ibv_alloc_null_mr": func(o unsafe.Pointer) (any, error) { return value(verbs.AllocNullMr((*verbs.Pd)(o))) },
}

func value[T any](v T, err error) (any, error) { return v, err }
