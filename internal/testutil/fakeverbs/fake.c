// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../../generated/libibverbs/abi.h"

struct fake {
	struct ibv_context context; /* first member, so that qp->context points to the struct fake */
	struct ibv_qp_ex qp;
	struct ibv_cq_ex cq;
	verbena_state state;
};

static struct fake *of_qp(struct ibv_qp_ex *qp) { return (struct fake *)qp->qp_base.context; }
static struct fake *of_cq(struct ibv_cq_ex *cq) { return (struct fake *)cq->context; }

static void record(struct fake *f, uint32_t op, uint64_t id, uint32_t flags, uint64_t a, uint64_t b, uint64_t c,
		   uint64_t d, uint64_t e)
{
	verbena_call call = {op, flags, id, {a, b, c, d, e}};

	if (f->state.record && f->state.ncalls < VERBENA_CALLS)
		f->state.calls[f->state.ncalls++] = call;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake *f = (struct fake *)qp->context;
	int64_t i;

	for (i = 0; wr; wr = wr->next, i++) {
		if (i == f->state.fail_at) {
			*bad = wr;
			return f->state.post_error;
		}
		f->state.requests++;
		if (f->state.record)
			record(f, OP_POST_SEND, wr->wr_id, wr->send_flags, wr->opcode, wr->num_sge, 0, 0, 0);
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake *f = (struct fake *)qp->context;
	int64_t i;

	for (i = 0; wr; wr = wr->next, i++) {
		if (i == f->state.fail_at) {
			*bad = wr;
			return f->state.post_error;
		}
		f->state.requests++;
		if (f->state.record)
			record(f, OP_POST_RECV, wr->wr_id, 0, wr->num_sge, 0, 0, 0, 0);
	}
	return 0;
}

/* Returns the number of completions that can be polled now. */
static int64_t available(struct fake *f)
{
	f->state.polls++;
	if (f->state.empty_polls > 0) {
		f->state.empty_polls--;
		return 0;
	}
	return f->state.completions;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct fake *f = (struct fake *)cq->context;
	int64_t there;
	int i;

	if (f->state.poll_error)
		return f->state.poll_error;
	there = available(f);
	if (n > there)
		n = there;
	f->state.completions -= n;
	for (i = 0; i < n; i++) {
		wc[i].wr_id = f->state.next_id++;
		wc[i].status = f->state.status;
		wc[i].opcode = IBV_WC_RECV;
		wc[i].vendor_err = 0;
		wc[i].byte_len = 64;
		wc[i].qp_num = 17;
		wc[i].wc_flags = f->state.wc_flags;
	}
	return n;
}

static int req_notify(struct ibv_cq *cq, int solicited)
{
	struct fake *f = (struct fake *)cq->context;

	if (f->state.arm_error)
		return f->state.arm_error;
	f->state.armed += solicited ? 100 : 1;
	f->state.completions += f->state.on_arming;
	f->state.on_arming = 0;
	return 0;
}

static int current(struct fake *f)
{
	if (f->state.poll_error)
		return f->state.poll_error;
	if (available(f) == 0)
		return ENOENT;
	f->state.completions--;
	f->cq.wr_id = f->state.next_id++;
	f->cq.status = f->state.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct fake *f = of_cq(cq);
	int error = attr->comp_mask ? EINVAL : current(f);

	if (!error)
		f->state.ended--;
	return error;
}

static int next_poll(struct ibv_cq_ex *cq) { return current(of_cq(cq)); }
static void end_poll(struct ibv_cq_ex *cq) { of_cq(cq)->state.ended++; }

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { (void)cq; return IBV_WC_RECV; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { (void)cq; return 0x99; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { (void)cq; return 64; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { (void)cq; return 0x01020304; }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { (void)cq; return 17; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { (void)cq; return 18; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return of_cq(cq)->state.wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { (void)cq; return 0xF0013; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { (void)cq; return 20; }
static uint8_t read_dlid(struct ibv_cq_ex *cq) { (void)cq; return 21; }
static uint64_t read_ts(struct ibv_cq_ex *cq) { (void)cq; return 22; }
static uint16_t read_cvlan(struct ibv_cq_ex *cq) { (void)cq; return 23; }
static uint32_t read_flow_tag(struct ibv_cq_ex *cq) { (void)cq; return 24; }
static uint64_t read_wallclock(struct ibv_cq_ex *cq) { (void)cq; return 25; }
static void read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *info)
{
	(void)cq;
	info->tag = 26;
	info->priv = 27;
}

#define NOTE(op, a, b, c, d, e) record(of_qp(qp), op, qp->wr_id, qp->wr_flags, a, b, c, d, e)

static void wr_start(struct ibv_qp_ex *qp) { NOTE(OP_START, 0, 0, 0, 0, 0); }
static void wr_abort(struct ibv_qp_ex *qp) { NOTE(OP_ABORT, 0, 0, 0, 0, 0); }
static int wr_complete(struct ibv_qp_ex *qp)
{
	NOTE(OP_COMPLETE, 0, 0, 0, 0, 0);
	return of_qp(qp)->state.post_error;
}
static void wr_send(struct ibv_qp_ex *qp)
{
	of_qp(qp)->state.requests++;
	NOTE(OP_SEND, 0, 0, 0, 0, 0);
}
static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm) { NOTE(OP_SEND_IMM, imm, 0, 0, 0, 0); }
static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t key) { NOTE(OP_SEND_INV, key, 0, 0, 0, 0); }
static void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t size, uint16_t mss)
{
	NOTE(OP_SEND_TSO, (uintptr_t)hdr, size, mss, 0, 0);
}
static void wr_write(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr) { NOTE(OP_WRITE, key, addr, 0, 0, 0); }
static void wr_write_imm(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, __be32 imm)
{
	NOTE(OP_WRITE_IMM, key, addr, imm, 0, 0);
}
static void wr_read(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr) { NOTE(OP_READ, key, addr, 0, 0, 0); }
static void wr_cmp_swp(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, uint64_t compare, uint64_t swap)
{
	NOTE(OP_CMP_SWP, key, addr, compare, swap, 0);
}
static void wr_fetch_add(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, uint64_t add)
{
	NOTE(OP_FETCH_ADD, key, addr, add, 0, 0);
}
static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t key, const struct ibv_mw_bind_info *info)
{
	NOTE(OP_BIND_MW, (uintptr_t)mw, key, info->addr, info->length, info->mw_access_flags);
}
static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t key) { NOTE(OP_LOCAL_INV, key, 0, 0, 0, 0); }
static void wr_flush(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, size_t n, uint8_t type, uint8_t level)
{
	NOTE(OP_FLUSH, key, addr, n, type, level);
}
static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, const void *data)
{
	uint64_t value;

	memcpy(&value, data, sizeof(value));
	NOTE(OP_ATOMIC_WRITE, key, addr, value, 0, 0);
}
static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, uint32_t n) { NOTE(OP_SGE, key, addr, n, 0, 0); }
static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *sges)
{
	NOTE(OP_SGE_LIST, n, n ? sges[n - 1].addr : 0, n ? sges[n - 1].length : 0, 0, 0);
}
static void wr_set_inline_data(struct ibv_qp_ex *qp, void *data, size_t n)
{
	uint64_t first = 0;

	memcpy(&first, data, n < sizeof(first) ? n : sizeof(first));
	NOTE(OP_INLINE, n, first, 0, 0, 0);
}
static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	NOTE(OP_UD_ADDR, (uintptr_t)ah, qpn, qkey, 0, 0);
}
static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t srqn) { NOTE(OP_XRC_SRQN, srqn, 0, 0, 0, 0); }

void *verbena_fake_new(void)
{
	struct fake *f = calloc(1, sizeof(*f));

	if (!f)
		abort();
	f->context.ops.post_send = post_send;
	f->context.ops.post_recv = post_recv;
	f->context.ops.poll_cq = poll_cq;
	f->context.ops.req_notify_cq = req_notify;
	f->cq = (struct ibv_cq_ex){
		.context = &f->context, .cqe = 1024,
		.start_poll = start_poll, .next_poll = next_poll, .end_poll = end_poll,
		.read_opcode = read_opcode, .read_vendor_err = read_vendor_err, .read_byte_len = read_byte_len,
		.read_imm_data = read_imm_data, .read_qp_num = read_qp_num, .read_src_qp = read_src_qp,
		.read_wc_flags = read_wc_flags, .read_slid = read_slid, .read_sl = read_sl,
		.read_dlid_path_bits = read_dlid, .read_completion_ts = read_ts, .read_cvlan = read_cvlan,
		.read_flow_tag = read_flow_tag, .read_tm_info = read_tm_info,
		.read_completion_wallclock_ns = read_wallclock,
	};
	f->qp = (struct ibv_qp_ex){
		.qp_base = {.context = &f->context, .qp_num = 17, .qp_type = IBV_QPT_RC, .state = IBV_QPS_RTS},
		.wr_start = wr_start, .wr_complete = wr_complete, .wr_abort = wr_abort,
		.wr_send = wr_send, .wr_send_imm = wr_send_imm, .wr_send_inv = wr_send_inv, .wr_send_tso = wr_send_tso,
		.wr_rdma_write = wr_write, .wr_rdma_write_imm = wr_write_imm, .wr_rdma_read = wr_read,
		.wr_atomic_cmp_swp = wr_cmp_swp, .wr_atomic_fetch_add = wr_fetch_add,
		.wr_bind_mw = wr_bind_mw, .wr_local_inv = wr_local_inv,
		.wr_flush = wr_flush, .wr_atomic_write = wr_atomic_write,
		.wr_set_sge = wr_set_sge, .wr_set_sge_list = wr_set_sge_list,
		.wr_set_inline_data = wr_set_inline_data, .wr_set_ud_addr = wr_set_ud_addr,
		.wr_set_xrc_srqn = wr_set_xrc_srqn,
	};
	f->state.fail_at = -1;
	return f;
}

void verbena_fake_free(void *fake) { free(fake); }
void *verbena_fake_qp(void *fake) { return &((struct fake *)fake)->qp; }
void *verbena_fake_cq(void *fake) { return &((struct fake *)fake)->cq; }
verbena_state *verbena_fake_state(void *fake) { return &((struct fake *)fake)->state; }
