// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/diff"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/nodes"
)

// edit is a change of a header, of a kind that rdma-core's releases have made.
type edit struct {
	name     string
	upstream string // where a release did the same
	header   string
	old, new string
	changes  []string // what gen diff says: ! before an ABI break, ~ before an undecided change, ? before a source break
	asks     []string // begins of the lines of the first run that ask about it; what ends with a colon goes on with a number
	fails    string   // the Go compiler's words for a use of what is gone
}

const (
	verbsHeader   = "infiniband/verbs.h"
	cmHeader      = "rdma/rdma_cma.h"
	socketHeader  = "rdma/rsocket.h"
	kernelHeader  = "infiniband/ib_user_ioctl_verbs.h"
	addressHeader = "infiniband/ib.h"
	efaHeader     = "infiniband/efadv.h"
	mlx5Header    = "infiniband/mlx5dv.h"
)

// edits make the headers of a release 66.0 that there never was from those of
// 65.0.
var edits = []edit{
	{
		name: "function with an error", upstream: "ibv_query_port_speed, 61", header: verbsHeader,
		old: "int ibv_query_port_speed(", new: "int ibv_query_dm_usage(struct ibv_dm *dm, uint64_t *used);\n\nint ibv_query_port_speed(",
		changes: []string{
			"function added: ibv_query_dm_usage",
		},
		asks: []string{
			"func ibv_query_dm_usage code # infiniband/verbs.h:",
		},
	},
	{
		name: "function without an error", upstream: "ibv_free_buf, 63", header: verbsHeader,
		old: "void ibv_free_buf(struct ibv_buf *buf);", new: "void ibv_free_buf(struct ibv_buf *buf);\nvoid ibv_sync_buf(struct ibv_buf *buf, size_t offset, size_t length);",
		changes: []string{
			"function added: ibv_sync_buf",
		},
		asks: []string{
			"func ibv_sync_buf void # infiniband/verbs.h:",
		},
	},
	{
		name: "function that returns a pointer", upstream: "ibv_import_dm, 35", header: verbsHeader,
		old: "struct ibv_dm *ibv_import_dm(", new: "struct ibv_buf *ibv_import_buf(struct ibv_pd *pd, int fd);\n\nstruct ibv_dm *ibv_import_dm(",
		changes: []string{
			"function added: ibv_import_buf",
		},
		asks: []string{
			"func ibv_import_buf pointer # infiniband/verbs.h:",
			"66 func ibv_import_buf # infiniband/verbs.h:",
		},
	},
	{
		name: "function under a new node", upstream: "rdma_write_cm_event, RDMACM_1.4 in 60", header: cmHeader,
		old: "int rdma_listen(struct rdma_cm_id *id, int backlog);", new: "int rdma_listen(struct rdma_cm_id *id, int backlog);\n\nint rdma_set_rtt(struct rdma_cm_id *id, uint32_t usec);",
		changes: []string{
			"function added: rdma_set_rtt",
		},
		asks: []string{
			"func rdma_set_rtt status # rdma/rdma_cma.h:",
		},
	},
	{
		name: "function for the library alone", upstream: "ibv_wr_opcode_str, 48", header: verbsHeader,
		old: "enum ibv_send_flags {", new: "const char *ibv_qp_state_str(enum ibv_qp_state state);\n\nenum ibv_send_flags {",
		changes: []string{
			"function added: ibv_qp_state_str",
		},
		asks: []string{
			`func ibv_qp_state_str string skip="exported only with a private symbol version" # infiniband/verbs.h:`,
		},
	},
	{
		name: "inline function that is told a size", upstream: "ibv_query_comp_cntr_caps, 65", header: verbsHeader,
		old: "struct ibv_comp_cntr {", new: `struct ibv_buf_caps {
	uint64_t max_size;
	uint32_t max_buffers;
	uint32_t flags;
};

int _ibv_query_buf_caps(struct ibv_context *context, struct ibv_buf_caps *caps, size_t caps_size);

static inline int ibv_query_buf_caps(struct ibv_context *context, struct ibv_buf_caps *caps)
{
	return _ibv_query_buf_caps(context, caps, sizeof(*caps));
}

struct ibv_comp_cntr {`,
		changes: []string{
			"function added: _ibv_query_buf_caps",
			"function added: ibv_query_buf_caps",
			"struct added: struct ibv_buf_caps",
		},
		asks: []string{
			"func _ibv_query_buf_caps code # infiniband/verbs.h:",
			"func ibv_query_buf_caps code inline=own # infiniband/verbs.h:",
			"- own_ibv_query_buf_caps for int ibv_query_buf_caps(struct ibv_context *context, struct ibv_buf_caps *caps) # infiniband/verbs.h:",
			"66 member ibv_buf_caps.flags # infiniband/verbs.h:",
		},
	},
	{
		name: "operation of a queue pair", upstream: "ibv_wr_flush, 45", header: verbsHeader,
		old: "\t\t\t uint8_t level);\n};", new: "\t\t\t uint8_t level);\n\tvoid (*wr_verify)(struct ibv_qp_ex *qp, uint32_t rkey,\n\t\t\t  uint64_t remote_addr, uint32_t crc);\n};",
		changes: []string{
			"struct grown: struct ibv_qp_ex",
			"member added: struct ibv_qp_ex.wr_verify",
		},
		asks: []string{
			"66 member ibv_qp_ex.wr_verify # infiniband/verbs.h:",
		},
	},
	{
		name: "its inline function", upstream: "ibv_wr_flush, 45", header: verbsHeader,
		old: "struct ibv_ece {", new: "static inline void ibv_wr_verify(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint32_t crc)\n{\n\tqp->wr_verify(qp, rkey, remote_addr, crc);\n}\n\nstruct ibv_ece {",
		changes: []string{
			"function added: ibv_wr_verify",
		},
		asks: []string{
			"func ibv_wr_verify void # infiniband/verbs.h:",
			"- void soft_wr_verify(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint32_t crc)",
		},
	},
	{
		name: "its flag, at the end of an enum", upstream: "IBV_QP_EX_WITH_ATOMIC_WRITE, 44", header: verbsHeader,
		old: "\tIBV_QP_EX_WITH_ATOMIC_WRITE		= 1 << 12,\n", new: "\tIBV_QP_EX_WITH_ATOMIC_WRITE		= 1 << 12,\n\tIBV_QP_EX_WITH_VERIFY			= 1 << 13,\n",
		changes: []string{
			"enumerator added: enum ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_VERIFY",
		},
		asks: []string{
			"66 enumerator IBV_QP_EX_WITH_VERIFY # infiniband/verbs.h:",
		},
	},
	{
		name: "its completion, in the middle of an enum", upstream: "IBV_WC_FLUSH, 45", header: verbsHeader,
		old: "\tIBV_WC_ATOMIC_WRITE = 9,\n", new: "\tIBV_WC_ATOMIC_WRITE = 9,\n\tIBV_WC_VERIFY,\n",
		changes: []string{
			"enumerator added: enum ibv_wc_opcode.IBV_WC_VERIFY",
		},
		asks: []string{
			"66 enumerator IBV_WC_VERIFY # infiniband/verbs.h:",
		},
	},
	{
		name: "event with a text", upstream: "IBV_EVENT_DEVICE_SPEED_CHANGE, 61", header: verbsHeader,
		old: "\tIBV_EVENT_DEVICE_SPEED_CHANGE,\n", new: "\tIBV_EVENT_DEVICE_SPEED_CHANGE,\n\tIBV_EVENT_DEVICE_TOO_HOT,\n",
		changes: []string{
			"enumerator added: enum ibv_event_type.IBV_EVENT_DEVICE_TOO_HOT",
		},
		asks: []string{
			"66 enumerator IBV_EVENT_DEVICE_TOO_HOT # infiniband/verbs.h:",
			"- what ibv_event_type_str prints for IBV_EVENT_DEVICE_TOO_HOT (21): tests/update-strings 66.0 asks the library",
		},
	},
	{
		name: "operation of a device", upstream: "verbs_context.free_buf, 63", header: verbsHeader,
		old: "\tvoid (*free_buf)(struct ibv_buf *buf);\n", new: "\tint (*query_dm_usage)(struct ibv_dm *dm, uint64_t *used);\n\tvoid (*free_buf)(struct ibv_buf *buf);\n",
		changes: []string{
			"struct grown at the front: struct verbs_context",
			"member added: struct verbs_context.query_dm_usage",
		},
		asks: []string{
			"66 member verbs_context.query_dm_usage # infiniband/verbs.h:",
		},
	},
	{
		name: "renamed enumerator", upstream: "ibv_reg_mr_in_mask, between 58 and 59", header: verbsHeader,
		old: "IBV_DMAH_INIT_ATTR_MASK_PH ", new: "IBV_DMAH_INIT_ATTR_MASK_HINT ",
		changes: []string{
			"enumerator added: enum ibv_dmah_init_attr_mask.IBV_DMAH_INIT_ATTR_MASK_HINT",
			"?enumerator removed: enum ibv_dmah_init_attr_mask.IBV_DMAH_INIT_ATTR_MASK_PH",
		},
		asks: []string{
			"66 enumerator IBV_DMAH_INIT_ATTR_MASK_HINT # infiniband/verbs.h:",
		},
		fails: "undefined: libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH",
	},
	{
		name: "struct and enum of flags", upstream: "ibv_mr_init_attr, 59", header: verbsHeader,
		old: "enum ibv_qp_create_flags {", new: `enum ibv_qp_hint_mask {
	IBV_QP_HINT_MASK_RTT = 1 << 0,
	IBV_QP_HINT_MASK_LOSS = 1 << 1,
};

struct ibv_qp_hints {
	uint64_t comp_mask;
	uint32_t rtt;
	uint16_t loss;
	uint8_t	reserved[2];
};

enum ibv_qp_create_flags {`,
		changes: []string{
			"enum added: enum ibv_qp_hint_mask",
			"enumerator added: enum ibv_qp_hint_mask.IBV_QP_HINT_MASK_RTT",
			"enumerator added: enum ibv_qp_hint_mask.IBV_QP_HINT_MASK_LOSS",
			"struct added: struct ibv_qp_hints",
		},
		asks: []string{
			"enum ibv_qp_hint_mask flags # infiniband/verbs.h:",
			"66 struct ibv_qp_hints # infiniband/verbs.h:",
		},
	},
	{
		name: "member at the end, without a comp_mask", upstream: "ibv_port_attr.active_speed_ex, 50", header: verbsHeader,
		old: "\tuint32_t\t\tactive_speed_ex;\n", new: "\tuint32_t\t\tactive_speed_ex;\n\tuint32_t\t\tactive_lanes;\n",
		changes: []string{
			"~struct grown: struct ibv_port_attr",
			"member added: struct ibv_port_attr.active_lanes",
		},
		asks: []string{
			"- `struct ibv_port_attr`, struct grown: `56 bytes` -> `60 bytes`; it has no comp_mask",
		},
	},
	{
		name: "member in reserved space", upstream: "efadv_wq_attr.caps, 65", header: efaHeader,
		old: "\tuint16_t caps;\n\tuint8_t reserved[2];\n", new: "\tuint16_t caps;\n\tuint16_t max_inline;\n",
		changes: []string{
			"member added: struct efadv_wq_attr.max_inline",
			"?member removed: struct efadv_wq_attr.reserved",
		},
		asks: []string{
			"66 member efadv_wq_attr.max_inline # infiniband/efadv.h:",
		},
	},
	{
		name: "member in part of the reserved space", upstream: "ib_uverbs_query_port_resp_ex.active_speed_ex, 50", header: kernelHeader,
		old: "\t__u8  reserved[2];\n\t__u32 active_speed_ex;", new: "\t__u8  active_lanes;\n\t__u8  reserved[1];\n\t__u32 active_speed_ex;",
		changes: []string{
			"member added: struct ib_uverbs_query_port_resp_ex.active_lanes",
			"member moved: struct ib_uverbs_query_port_resp_ex.reserved",
			"member type changed: struct ib_uverbs_query_port_resp_ex.reserved",
		},
	},
	{
		name: "member in an anonymous union", upstream: "mlx5dv_dc_init_attr.dci_streams, 34", header: mlx5Header,
		old: "struct mlx5dv_var {\n\tuint32_t page_id;\n", new: "struct mlx5dv_var {\n\tunion {\n\t\tuint32_t page_id;\n\t\tuint16_t page_ids[2];\n\t};\n",
		changes: []string{
			"member added: struct mlx5dv_var.page_ids",
			"?member union changed: struct mlx5dv_var.page_id",
		},
		asks: []string{
			"66 member mlx5dv_var.page_ids # infiniband/mlx5dv.h:",
		},
	},
	{
		name: "array length with a name", upstream: "ETHERNET_LL_SIZE, 52", header: verbsHeader,
		old: "union ibv_gid {\n\tuint8_t			raw[16];", new: "#define IBV_GID_SIZE 16\nunion ibv_gid {\n\tuint8_t			raw[IBV_GID_SIZE];",
		changes: []string{
			"macro added: IBV_GID_SIZE",
		},
	},
	{
		name: "value that is the length of arrays", upstream: "UMAD_MAX_PORTS, 64 to 192 in 64", header: verbsHeader,
		old: "\tIBV_SYSFS_NAME_MAX	= 64,", new: "\tIBV_SYSFS_NAME_MAX	= 128,",
		changes: []string{
			"!enumerator value changed: enum.IBV_SYSFS_NAME_MAX",
			"~struct grown: struct ibv_device",
			"!member moved: struct ibv_device.dev_name",
			"!member moved: struct ibv_device.dev_path",
			"!member moved: struct ibv_device.ibdev_path",
			"!member type changed: struct ibv_device.name",
			"!member type changed: struct ibv_device.dev_name",
		},
	},
	{
		name: "macro with another value", upstream: "UMAD_MAX_DEVICES, 32 to 128 in 61", header: verbsHeader,
		old: "#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN (0xC000)", new: "#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN (0xC100)",
		changes: []string{
			"!macro value changed: IB_ROCE_UDP_ENCAP_VALID_PORT_MIN",
			"body changed: ibv_flow_label_to_udp_sport",
		},
	},
	{
		name: "macro", upstream: "RAI_DNS, 60", header: cmHeader,
		old: "#define RAI_DNS	", new: "#define RAI_CACHED		0x00000040\n#define RAI_DNS	",
		changes: []string{
			"macro added: RAI_CACHED",
		},
		asks: []string{
			"66 macro RAI_CACHED # rdma/rdma_cma.h:",
		},
	},
	{
		name: "macro with arguments", upstream: "mlx5dv_create_flow, 62", header: cmHeader,
		old: "#define RDMA_UDP_QKEY 0x01234567", new: "#define RDMA_UDP_QKEY 0x01234567\n#define RDMA_PS_OF(sid) (((sid) >> 16) & 0xffff)",
		changes: []string{
			"macro added: RDMA_PS_OF",
		},
		asks: []string{
			`macro RDMA_PS_OF skip="no value" # rdma/rdma_cma.h:`,
		},
	},
	{
		name: "body of an inline function", upstream: "ibv_bind_mw, 38", header: verbsHeader,
		old: "\tif (mw->type != IBV_MW_TYPE_1)\n\t\treturn EINVAL;\n", new: "\tif (mw->type != IBV_MW_TYPE_1 || !mw->pd)\n\t\treturn EINVAL;\n",
		changes: []string{
			"body changed: ibv_bind_mw",
		},
		asks: []string{
			"- `ibv_bind_mw`; still inline with logic of its own; own_ibv_bind_mw in gen/internal/emit/c",
		},
	},
	{
		name: "function that becomes inline", upstream: "mlx5dv_create_flow, 62", header: verbsHeader,
		old: "int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);", new: `static inline int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	struct verbs_context *vctx = verbs_get_ctx_op(dm->context, dm_export_dmabuf_fd);

	if (!vctx) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return vctx->dm_export_dmabuf_fd(dm);
}`,
		changes: []string{
			"function now inline: ibv_dm_export_dmabuf_fd",
		},
		asks: []string{
			"- infiniband/verbs.h:LINE: func ibv_dm_export_dmabuf_fd: inline function of a form that is not recognised, and its line at headers/conventions.txt:",
			"- own_ibv_dm_export_dmabuf_fd for int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm) # infiniband/verbs.h:",
		},
	},
	{
		name: "member that is wider", upstream: "none since 33", header: efaHeader,
		old: "\tuint16_t inline_buf_size_ex;", new: "\tuint32_t inline_buf_size_ex;",
		changes: []string{
			"struct grown: struct efadv_device_attr",
			"!member moved: struct efadv_device_attr.inline_buf_size_ex",
			"!member moved: struct efadv_device_attr.device_caps",
			"!member moved: struct efadv_device_attr.max_rdma_size",
			"!member type changed: struct efadv_device_attr.inline_buf_size_ex",
		},
	},
	{
		name: "const", upstream: "none since 33", header: cmHeader,
		old: "int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);", new: "int rdma_accept(struct rdma_cm_id *id, const struct rdma_conn_param *conn_param);",
		changes: []string{
			"?prototype changed: rdma_accept",
		},
	},
	{
		name: "removed declaration", upstream: "mad_register_port_client, 54", header: mlx5Header,
		old: "int mlx5dv_reserved_qpn_dealloc(struct ibv_context *ctx, uint32_t qpn);\n", new: "",
		changes: []string{
			"?function removed: mlx5dv_reserved_qpn_dealloc",
		},
		asks: []string{
			"- headers/mlx5/conventions.txt:LINE: a line for the function mlx5dv_reserved_qpn_dealloc, ",
			"- headers/mlx5/manual.txt:LINE: a manual page for the function mlx5dv_reserved_qpn_dealloc, ",
		},
	},
	{
		name: "header that a bound one includes, with typedefs and bit-fields", upstream: "ibmad_ports_item_t, 56", header: socketHeader,
		old: "#include <rdma/rdma_cma.h>\n", new: "#include <rdma/rdma_cma.h>\n#include <rdma/rsocket_stats.h>\n",
		changes: []string{
			"header added: rdma/rsocket_stats.h",
			"function added: rsocket_stats",
			"struct added: struct rs_stats",
			"typedef added: rs_counter",
			"typedef added: rs_stats_t",
		},
		asks: []string{
			"header rdma/rsocket_stats.h librdmacm",
			"func rsocket_stats status # rdma/rsocket_stats.h:",
			"66 typedef rs_stats_t # rdma/rsocket_stats.h:",
			"66 member rs_stats.is_server # rdma/rsocket_stats.h:",
		},
	},
	{
		name: "typo in a comment", upstream: "verbs.h, 57", header: verbsHeader,
		old: "ibv_unimport_pd - Unimport a protection domain", new: "ibv_unimport_pd - Gives back a protection domain",
	},
	{
		name: "function of a driver's library", upstream: "mlx5dv_var_export, 62", header: mlx5Header,
		old: "int mlx5dv_var_export(", new: "int mlx5dv_var_size(struct mlx5dv_var *dv_var, uint64_t *size);\n\nint mlx5dv_var_export(",
		changes: []string{
			"function added: mlx5dv_var_size",
		},
		asks: []string{
			"func mlx5dv_var_size code # infiniband/mlx5dv.h:",
		},
	},
	{
		name: "header of libc's", upstream: "<string.h>, 36", header: verbsHeader,
		old: "#include <linux/types.h>\n", new: "#include <linux/types.h>\n#include <sys/times.h>\n",
	},
	{
		name: "header that only glibc has", upstream: "none since 33", header: verbsHeader,
		old: "#include <stdint.h>\n", new: "#include <stdint.h>\n#include <gnu/libc-version.h>\n",
		asks: []string{
			"- infiniband/verbs.h:LINE includes <gnu/libc-version.h>, which is none of musl's or the kernel's headers: add a file of this name to headers/shim, ",
		},
	},
	{
		name: "removed enum", upstream: "none since 33", header: kernelHeader,
		old: "enum ib_uverbs_wq_type {\n\tIB_UVERBS_WQT_RQ,\n};\n", new: "",
		changes: []string{
			"?enum removed: enum ib_uverbs_wq_type",
			"?enumerator removed: enum ib_uverbs_wq_type.IB_UVERBS_WQT_RQ",
		},
		asks: []string{
			"- headers/conventions.txt:LINE: the line for the enum ib_uverbs_wq_type stays for scans of older headers: ",
		},
	},
	{
		name: "removed macro without a value", upstream: "none since 33", header: addressHeader,
		old: "#define sib_raw			ib_u.uib_addr8\n", new: "",
		changes: []string{
			"?macro removed: sib_raw",
		},
		asks: []string{
			"- headers/conventions.txt:LINE: the line for the macro sib_raw stays for scans of older headers: ",
		},
	},
	{
		name: "enum without a tag", upstream: "EFADV_WQ_CAPS_64_BIT_REQ_ID, 65", header: efaHeader,
		old: "struct efadv_cq_attr {", new: "enum {\n\tEFADV_CQ_CAPS_TIMESTAMP = 1 << 0,\n};\n\nstruct efadv_cq_attr {",
		changes: []string{
			"enumerator added: enum.EFADV_CQ_CAPS_TIMESTAMP",
		},
		asks: []string{
			"enum :EFADV_CQ_CAPS_TIMESTAMP values name=- # infiniband/efadv.h:",
		},
	},
}

// newHeaders are whole headers.
var newHeaders = map[string]string{
	"rdma/rsocket_stats.h": `#ifndef RSOCKET_STATS_H
#define RSOCKET_STATS_H

#include <stdint.h>

typedef uint64_t rs_counter;

typedef struct rs_stats {
	rs_counter sent;
	rs_counter received;
	uint32_t is_server : 1;
	uint32_t state : 5;
	uint32_t : 0;
	uint32_t id;
} rs_stats_t;

int rsocket_stats(int socket, rs_stats_t *stats);

#endif
`,
	"infiniband/nedv.h": `#ifndef NEDV_H
#define NEDV_H

#include <infiniband/verbs.h>

int nedv_query_device(struct ibv_context *context);

#endif
`,
	"infiniband/umad_perf.h": "int umad_perf_query(int portid);\n",
}

// removedHeader is one that the release does not have any more.
const removedHeader = "infiniband/umad_sa_mcm.h"

// asked are the begins of the lines of the first run that ask about whole
// headers.
var asked = []string{
	"header infiniband/nedv.h skip=",
	`header infiniband/umad_perf.h other="libibumad-dev" # named like infiniband/umad.h, which headers/ibumad binds: `,
	"- headers/ibumad/umbrella.h:LINE includes <infiniband/umad_sa_mcm.h>, which the headers do not have: put the line between ",
	"- headers/ibumad/conventions.txt:LINE: the line for the header infiniband/umad_sa_mcm.h stays for scans of older headers: ",
}

// newExports are what the libraries of the release export in addition.
var newExports = map[string]map[string]string{
	"libibverbs.so.1": {
		"ibv_query_dm_usage": "IBVERBS_1.19", "ibv_sync_buf": "IBVERBS_1.19", "ibv_import_buf": "IBVERBS_1.19", "_ibv_query_buf_caps": "IBVERBS_1.19",
		"ibv_qp_state_str": "IBVERBS_PRIVATE_66",
	},
	"librdmacm.so.1": {"rdma_set_rtt": "RDMACM_1.6", "rsocket_stats": "RDMACM_1.6"},
	"libmlx5.so.1":   {"mlx5dv_var_size": "MLX5_1.28"},
}

// corrections are what a person decides in another way than gen proposes, by
// the begin of the proposed line.
var corrections = map[string]string{
	"func ibv_query_dm_usage ":  "func ibv_query_dm_usage code out=used",
	"func _ibv_query_buf_caps ": `func _ibv_query_buf_caps code skip="for ibv_query_buf_caps, which passes the size of the struct"`,
	"func mlx5dv_var_size ":     "func mlx5dv_var_size code out=size",
}

// ownFunctions are what a person writes in C for inline functions, and for the
// device in user space.
var ownFunctions = map[string]string{
	ownFile: `
static int own_ibv_query_buf_caps(struct ibv_context *context, struct ibv_buf_caps *caps)
{
	if (!LIB(_ibv_query_buf_caps))
		return lacking();
	return LIB(_ibv_query_buf_caps)(context, caps, sizeof(*caps));
}

static int own_ibv_dm_export_dmabuf_fd(struct ibv_dm *dm)
{
	struct verbs_context *vctx = CONTEXT_WITH(dm->context, dm_export_dmabuf_fd);

	if (vctx && vctx->dm_export_dmabuf_fd)
		return vctx->dm_export_dmabuf_fd(dm);
	errno = EOPNOTSUPP;
	return -1;
}
`,
	"softroce/internal/capi/post.c": `
void soft_wr_verify(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint32_t crc)
{
	refuse(ex);
}
`,
}

// TestNextRelease takes in a release of many changes at once: one run asks for
// all decisions, the next ends with bindings that compilers confirm, and what
// does not compile any more is what gen diff calls a break.
func TestNextRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the bindings anew")
	}
	headers := nextRelease(t)
	r := copyRepository(t, "softroce", "ibverbs", "rdmacm")
	r.commit(t)
	out := r.upgrade(t, false, "66.0", headers)
	require.Contains(t, out, "upgrade: stopped. Decide each of the lines above and add it.\n")
	require.NoFileExists(t, filepath.Join(r.top, "headers", "api", "66.0.json"))
	for _, e := range edits {
		for _, line := range e.asks {
			require.Regexp(t, begins(line), out, e.name)
		}
	}
	for _, line := range asked {
		require.Regexp(t, begins(line), out)
	}

	r.decide(t, out)
	out = r.upgrade(t, false, "66.0", headers)
	for _, asked := range []string{"Lines for ", "Lines of ", "C functions "} {
		require.NotContains(t, out, asked)
	}
	require.Contains(t, out, "\n==> done: 65.0 -> 66.0\n")
	require.Contains(t, out, " comparisons, 0 differ\n")
	require.Contains(t, out, "\nThen run: make check arch lint unit device\nupgrade: programs that were compiled for 65.0 can fail with 66.0: see the ABI breaks above\n")
	changes := append(lost(t), "header added: infiniband/nedv.h")
	for _, e := range edits {
		changes = append(changes, e.changes...)
	}
	require.ElementsMatch(t, changes, r.changes(t))
	for name, want := range map[string]string{
		"generated/libibverbs/doc.go":    "66.0",
		"generated/libibverbs/enums.go":  "IBV_WC_VERIFY ",
		"generated/librdmacm/bits.go":    "package librdmacm",
		"generated/libefa/enums.go":      "EFADV_CQ_CAPS_TIMESTAMP = 1",
		"tests/golden/libibverbs.layout": "\nstruct ibv_qp_hints ",
		"docs/proof/coverage.md":         "66.0",
	} {
		require.Contains(t, read(t, filepath.Join(r.top, name)), want, name)
	}

	out, err := r.run("./.cache/upgrade/66.0/gen", "check", "-headers", headers, "-cc", strings.Join(installed("clang", "s390x-linux-gnu-gcc"), ","))
	require.NoError(t, err, out)
	require.Contains(t, out, " comparisons, 0 differ\n")
	out, err = r.run("go", "test", "./generated/...")
	require.NoError(t, err, out)
	r.compiles(t)
	refused(t, r)
}

// lost returns the changes that the removed header makes.
func lost(t *testing.T) []string {
	t.Helper()
	a, err := api.Load(filepath.Join(headertest.Top(t), "headers", "ibumad", "api", "65.0.json"))
	require.NoError(t, err)
	all := []string{"?header removed: " + removedHeader}
	for _, f := range a.Functions {
		if f.Header == removedHeader {
			all = append(all, "?function removed: "+f.Name)
		}
	}
	for _, e := range a.Enums {
		for _, v := range e.Values {
			if e.Header == removedHeader {
				all = append(all, "?enumerator removed: enum."+v.Name)
			}
		}
	}
	for _, s := range a.Structs {
		if s.Header == removedHeader {
			all = append(all, "?struct removed: "+s.Name)
		}
	}
	return all
}

// begins returns an expression for a line that begins so. LINE stands for the
// number of a line, which also follows a colon at the end.
func begins(line string) *regexp.Regexp {
	text := strings.ReplaceAll(regexp.QuoteMeta(line), "LINE", `[0-9]+`)
	if strings.HasSuffix(line, ":") {
		text += `[0-9]`
	}
	return regexp.MustCompile("(?m)^" + text)
}

// installed returns those of the compilers that the machine has.
func installed(compilers ...string) (found []string) {
	for _, cc := range compilers {
		if _, err := exec.LookPath(cc); err == nil {
			found = append(found, cc)
		}
	}
	return append(found, "gcc")
}

// compiles shows that hand-written packages compile but for the uses of what
// edits have taken away.
func (r *repository) compiles(t *testing.T) {
	t.Helper()
	out, err := r.run("go", "vet", "./ibverbs/...", "./rdmacm/...")
	require.Error(t, err)
	want := map[string]bool{}
	for _, e := range edits {
		if e.fails != "" {
			require.True(t, strings.ContainsAny(strings.Join(e.changes, ""), "!?"), e.name)
			want[e.fails] = true
		}
	}
	got := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\S+\.go:\d+:\d+: (.*)$`).FindAllStringSubmatch(out, -1) {
		got[m[1]] = true
	}
	require.Equal(t, want, got, out)
}

// changes returns what gen diff says, with ! before an ABI break, ~ before an
// undecided change and ? before a source break.
func (r *repository) changes(t *testing.T) (all []string) {
	t.Helper()
	for _, folder := range []string{"headers", "headers/efa", "headers/ibmad", "headers/ibumad", "headers/mlx5"} {
		var both []*api.API
		for _, version := range []string{"65.0", "66.0"} {
			a, err := api.Load(filepath.Join(r.top, folder, "api", version+".json"))
			require.NoError(t, err)
			both = append(both, a)
		}
		for _, c := range diff.Compare(both[0], both[1]).Changes {
			mark := ""
			switch {
			case c.Break:
				mark = "!"
			case c.Undecided:
				mark = "~"
			case c.Source:
				mark = "?"
			}
			all = append(all, mark+string(c.Kind)+": "+strings.TrimPrefix(c.Of+"."+c.Name, "."))
		}
	}
	return all
}

// decide adds the lines that an upgrade has asked for, and changes those that
// do not fit, as a person does.
func (r *repository) decide(t *testing.T, asked string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?ms)^Lines for (\S+),.*?\n\n(.*?)\n\n`).FindAllStringSubmatch(asked, -1) {
		lines := strings.Split(m[2], "\n")
		for i, line := range lines {
			for begin, correct := range corrections {
				if strings.HasPrefix(line, begin) {
					lines[i] = correct
				}
			}
		}
		r.edit(t, m[1], func(text string) string { return text + strings.Join(lines, "\n") + "\n" })
	}
	for name, text := range ownFunctions {
		r.edit(t, name, func(old string) string { return old + text })
	}
	r.replace(t, conventionsFile, "func ibv_dm_export_dmabuf_fd              count", "func ibv_dm_export_dmabuf_fd              count inline=own")
	r.replace(t, stringsFile, `IBV_EVENT_DEVICE_SPEED_CHANGE "Device link speed change"`, "IBV_EVENT_DEVICE_SPEED_CHANGE \"Device link speed change\"\nIBV_EVENT_DEVICE_TOO_HOT \"Device too hot\"")
	const include = "#include <" + removedHeader + ">\n"
	r.replace(t, "headers/ibumad/umbrella.h", include, "#if __has_include(<"+removedHeader+">)\n"+include+"#endif\n")
	shim := filepath.Join(r.top, "headers", "shim", "gnu", "libc-version.h")
	require.NoError(t, os.Mkdir(filepath.Dir(shim), 0o700))
	require.NoError(t, os.WriteFile(shim, []byte("#pragma once\n"), 0o600))
	r.replace(t, "headers/mlx5/manual.txt", " mlx5dv_reserved_qpn_dealloc", "")
	r.edit(t, "headers/mlx5/conventions.txt", func(text string) string {
		return regexp.MustCompile(`(?m)^func mlx5dv_reserved_qpn_dealloc .*`).ReplaceAllString(text, `$0 skip="declared until 65"`)
	}) // a scan of 65.0 needs the line
}

func (r *repository) replace(t *testing.T, name, old, text string) {
	t.Helper()
	r.edit(t, name, func(all string) string {
		require.Equal(t, 1, strings.Count(all, old), "%s has %q", name, old)
		return strings.Replace(all, old, text, 1)
	})
}

// nextRelease makes the headers of 66.0 and its libraries, whose functions do
// nothing.
func nextRelease(t *testing.T) string {
	t.Helper()
	from, to := headertest.Dir(t, "65.0"), t.TempDir()
	include := filepath.Join(to, "usr", "include")
	require.NoError(t, os.CopyFS(include, os.DirFS(filepath.Join(from, "usr", "include"))))
	for _, e := range edits {
		path := filepath.Join(include, e.header)
		text := read(t, path)
		require.Equal(t, 1, strings.Count(text, e.old), "%s: %s has %q", e.name, e.header, e.old)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, e.old, e.new, 1)), 0o600))
	}
	for name, text := range newHeaders {
		require.NoError(t, os.WriteFile(filepath.Join(include, name), []byte(text), 0o600))
	}
	require.NoError(t, os.Remove(filepath.Join(include, removedHeader)))
	libraries, err := os.ReadDir(filepath.Join(from, "usr", "lib"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(to, "usr", "lib"), 0o700))
	for _, l := range libraries {
		exported, err := nodes.Read(filepath.Join(from, "usr", "lib"), []string{l.Name()})
		require.NoError(t, err)
		maps.Copy(exported, newExports[l.Name()])
		library(t, filepath.Join(to, "usr", "lib", l.Name()), exported)
	}
	return to
}

// library compiles one that exports functions, each under its node.
func library(t *testing.T, path string, exported map[string]string) {
	t.Helper()
	var source, script strings.Builder
	byNode := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(exported)) {
		fmt.Fprintf(&source, "void %s(void) {}\n", name)
		byNode[exported[name]] = append(byNode[exported[name]], name)
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		fmt.Fprintf(&script, "%s { global: %s; };\n", node, strings.Join(byNode[node], "; "))
	}
	require.NoError(t, os.WriteFile(path+".map", []byte(script.String()), 0o600))
	cmd := exec.Command("cc", "-shared", "-nostdlib", "-fno-builtin", "-w", "-Wl,--version-script="+path+".map", "-o", path, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(source.String())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Remove(path+".map"))
}
