// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include "datapath.h"

#include <errno.h>
#include <string.h>

#include "../../generated/libibverbs/abi.h"

/* Maximum number of bytes of inline data that are gathered from several segments. */
#define GATHERED 4096

static int add_inline(struct ibv_qp_ex *qp, struct ibv_send_wr *wr)
{
	uint8_t gathered[GATHERED];
	size_t n = 0;
	int i;

	if (wr->num_sge == 1) {
		if (!qp->wr_set_inline_data)
			return EOPNOTSUPP;
		qp->wr_set_inline_data(qp, (void *)(uintptr_t)wr->sg_list[0].addr, wr->sg_list[0].length);
		return 0;
	}
	/* Not wr_set_inline_data_list, which loses the data in Soft-RoCE's provider
	 * before rdma-core 64. */
	for (i = 0; i < wr->num_sge; i++) {
		if (wr->sg_list[i].length > GATHERED - n)
			return EINVAL; /* more than any device takes */
		memcpy(gathered + n, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		n += wr->sg_list[i].length;
	}
	if (!qp->wr_set_inline_data)
		return EOPNOTSUPP;
	qp->wr_set_inline_data(qp, gathered, n);
	return 0;
}

/* Reports whether a list of segments would be sent with a wrong length: before
 * rdma-core 64, Soft-RoCE's provider treats all segments as being as long as the first. */
static int miscounted(struct ibv_qp_ex *qp, struct ibv_send_wr *wr)
{
	static _Atomic(uintptr_t) known_good; /* wr_set_sge_list last found to belong to another provider */
	uintptr_t set = (uintptr_t)qp->wr_set_sge_list;
	int i = 1;

	if (set == known_good)
		return 0;
	if (!verbena_is_rxe((uint8_t *)set)) {
		known_good = set;
		return 0;
	}
	while (i < wr->num_sge && wr->sg_list[i].length == wr->sg_list[0].length)
		i++;
	return i < wr->num_sge;
}

#define MISCOUNTED (-1)

static int add_data(struct ibv_qp_ex *qp, struct ibv_send_wr *wr)
{
	if (wr->send_flags & IBV_SEND_INLINE)
		return add_inline(qp, wr);
	if (wr->num_sge == 1) {
		if (!qp->wr_set_sge)
			return EOPNOTSUPP;
		qp->wr_set_sge(qp, wr->sg_list[0].lkey, wr->sg_list[0].addr, wr->sg_list[0].length);
		return 0;
	}
	if (!qp->wr_set_sge_list)
		return EOPNOTSUPP;
	if (wr->num_sge > 1 && miscounted(qp, wr))
		return MISCOUNTED;
	qp->wr_set_sge_list(qp, wr->num_sge, wr->sg_list);
	return 0;
}

/* Sets the destination of a datagram or an XRC request. */
static int add_destination(struct ibv_qp_ex *qp, struct ibv_send_wr *wr)
{
	switch (qp->qp_base.qp_type) {
	case IBV_QPT_UD:
		if (!wr->wr.ud.ah)
			return EINVAL;
		if (!qp->wr_set_ud_addr)
			return EOPNOTSUPP;
		qp->wr_set_ud_addr(qp, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
		break;
	case IBV_QPT_XRC_SEND:
		if (!qp->wr_set_xrc_srqn)
			return EOPNOTSUPP;
		qp->wr_set_xrc_srqn(qp, wr->qp_type.xrc.remote_srqn);
		break;
	default:
		break;
	}
	return 0;
}

/* An older library's struct ibv_qp_ex ends earlier, so ops is checked before an
 * operation is read. */
#define CAN(flag, operation) ((ops & (flag)) && qp->operation)

static int add_one(struct ibv_qp_ex *qp, uint64_t ops, struct ibv_send_wr *wr)
{
	int error;

	qp->wr_id = wr->wr_id;
	qp->wr_flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		if (!CAN(IBV_QP_EX_WITH_SEND, wr_send))
			return EOPNOTSUPP;
		qp->wr_send(qp);
		break;
	case IBV_WR_SEND_WITH_IMM:
		if (!CAN(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm))
			return EOPNOTSUPP;
		qp->wr_send_imm(qp, wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
		if (!CAN(IBV_QP_EX_WITH_SEND_WITH_INV, wr_send_inv))
			return EOPNOTSUPP;
		qp->wr_send_inv(qp, wr->invalidate_rkey);
		break;
	case IBV_WR_RDMA_WRITE:
		if (!CAN(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write))
			return EOPNOTSUPP;
		qp->wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		if (!CAN(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm))
			return EOPNOTSUPP;
		qp->wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
		break;
	case IBV_WR_RDMA_READ:
		if (!CAN(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read))
			return EOPNOTSUPP;
		qp->wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		if (!CAN(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp))
			return EOPNOTSUPP;
		qp->wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
				      wr->wr.atomic.swap);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		if (!CAN(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add))
			return EOPNOTSUPP;
		qp->wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
		break;
	case IBV_WR_TSO:
		if (!CAN(IBV_QP_EX_WITH_TSO, wr_send_tso))
			return EOPNOTSUPP;
		qp->wr_send_tso(qp, wr->tso.hdr, wr->tso.hdr_sz, wr->tso.mss);
		break;
	/* These have no segments and no destination other than the connection. */
	case IBV_WR_BIND_MW:
		if (!CAN(IBV_QP_EX_WITH_BIND_MW, wr_bind_mw))
			return EOPNOTSUPP;
		qp->wr_bind_mw(qp, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		return 0;
	case IBV_WR_LOCAL_INV:
		if (!CAN(IBV_QP_EX_WITH_LOCAL_INV, wr_local_inv))
			return EOPNOTSUPP;
		qp->wr_local_inv(qp, wr->invalidate_rkey);
		return 0;
	case IBV_WR_FLUSH: /* its fields are those of an atomic operation */
		if (!CAN(IBV_QP_EX_WITH_FLUSH, wr_flush))
			return EOPNOTSUPP;
		qp->wr_flush(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
			     wr->wr.atomic.swap & 0xff, wr->wr.atomic.swap >> 8);
		return 0;
	case IBV_WR_ATOMIC_WRITE:
		if (!CAN(IBV_QP_EX_WITH_ATOMIC_WRITE, wr_atomic_write))
			return EOPNOTSUPP;
		qp->wr_atomic_write(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, &wr->wr.atomic.compare_add);
		return 0;
	default:
		return EOPNOTSUPP;
	}
	error = add_destination(qp, wr);
	return error ? error : add_data(qp, wr);
}

static void failed(struct verbena_posted *out, int value, void *bad)
{
	out->value = value;
	out->error = errno;
	out->bad = bad;
}

static void post_list(struct ibv_qp *qp, struct ibv_send_wr *wr, struct verbena_posted *out)
{
	struct ibv_send_wr *bad = NULL;
	int value = EOPNOTSUPP;

	if (qp->context->ops.post_send) {
		errno = 0;
		value = qp->context->ops.post_send(qp, wr, &bad);
	}
	if (value)
		failed(out, value, bad);
}

/* Posts with ibv_post_send, if the list has no request that needs ibv_wr_*.
 * Programs may mix both ways of posting. */
static void post_otherwise(struct ibv_qp *qp, struct ibv_send_wr *list, struct verbena_posted *out, void *bad)
{
	struct ibv_send_wr *wr;

	for (wr = list; wr; wr = wr->next)
		if (wr->opcode == IBV_WR_FLUSH || wr->opcode == IBV_WR_ATOMIC_WRITE) {
			failed(out, EOPNOTSUPP, bad);
			out->none = 1;
			return;
		}
	post_list(qp, list, out);
}

static void post_extended(struct ibv_qp_ex *qp, uint64_t ops, struct ibv_send_wr *list, struct verbena_posted *out)
{
	struct ibv_send_wr *wr;
	int value;

	qp->wr_start(qp);
	for (wr = list; wr; wr = wr->next) {
		value = add_one(qp, ops, wr);
		if (value) {
			qp->wr_abort(qp);
			if (value == MISCOUNTED) {
				post_otherwise(&qp->qp_base, list, out, wr);
				return;
			}
			break;
		}
	}
	if (!wr) {
		errno = 0;
		value = qp->wr_complete(qp);
	}
	if (value) {
		failed(out, value, wr);
		out->none = 1;
	}
}

static __thread uint8_t *origin;

void verbena_set_origin(uint8_t *text)
{
	origin = text;
}

const char *verbena_origin(void)
{
	return (const char *)origin;
}

void verbena_post_send(uint8_t *qp, uint64_t ops, uint8_t *wr, uint8_t *posted)
{
	if (ops)
		post_extended((struct ibv_qp_ex *)qp, ops, (struct ibv_send_wr *)wr, (struct verbena_posted *)posted);
	else
		post_list((struct ibv_qp *)qp, (struct ibv_send_wr *)wr, (struct verbena_posted *)posted);
}

void verbena_post_recv(uint8_t *p_qp, uint8_t *wr, uint8_t *posted)
{
	struct ibv_qp *qp = (struct ibv_qp *)p_qp;
	struct ibv_recv_wr *bad = NULL;
	int value = EOPNOTSUPP;

	if (qp->context->ops.post_recv) {
		errno = 0;
		value = qp->context->ops.post_recv(qp, (struct ibv_recv_wr *)wr, &bad);
	}
	if (value)
		failed((struct verbena_posted *)posted, value, bad);
}
