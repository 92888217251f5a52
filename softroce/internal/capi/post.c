// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include <errno.h>
#include <string.h>

#include "bell.h"
#include "ring.h"

static struct soft_qp *of(struct ibv_qp *qp)
{
	return (struct soft_qp *)qp;
}

/* Reports whether a send can be posted in the state that the queue pair is in. */
static int may_send(const struct soft_qp *qp)
{
	uint32_t state = __atomic_load_n(&qp->send.state, __ATOMIC_ACQUIRE);

	return state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE ||
	       (state == IBV_QPS_ERR && !qp->refuses_late);
}

static void *slot(const struct soft_wq *q, uint32_t n)
{
	return q->slots + (size_t)(n & (q->size - 1)) * q->stride;
}

static int full(const struct soft_wq *q, uint32_t n)
{
	return n - __atomic_load_n(&q->freed, __ATOMIC_ACQUIRE) >= q->max;
}

static void publish(struct soft_wq *q, uint32_t n)
{
	if (n == q->posted)
		return;
	soft_tell_posted(q, n);
	__atomic_store_n(&q->posted, n, __ATOMIC_RELEASE);
	soft_ring_bell(q);
}

/* Copies bytes of a segment into a slot. Returns EINVAL if they do not fit. */
static int add_inline(const struct soft_wq *q, struct soft_send *s, const void *bytes, size_t length)
{
	if (length > q->max_inline - s->inline_len)
		return EINVAL;
	memcpy((uint8_t *)s->sges + s->inline_len, bytes, length);
	s->inline_len += length;
	return 0;
}

static int add_segments(const struct soft_wq *q, struct soft_send *s, const struct ibv_sge *sges, size_t n)
{
	int error = 0;

	if (n > q->max_sge)
		return EINVAL;
	if (!(s->flags & IBV_SEND_INLINE)) {
		s->num_sge = n;
		if (n)
			memcpy(s->sges, sges, n * sizeof(*sges));
		return 0;
	}
	for (size_t i = 0; i < n && !error; i++)
		error = add_inline(q, s, (const void *)(uintptr_t)sges[i].addr, sges[i].length);
	return error;
}

/* Reports whether the device lacks an operation. */
static int lacks(const struct soft_qp *qp, uint32_t opcode)
{
	return opcode < 32 && qp->lacks >> opcode & 1;
}

/* Reports whether a request has more segments than its operation may have. */
static int too_many(const struct soft_qp *qp, uint32_t opcode, size_t n)
{
	return opcode == IBV_WR_RDMA_READ && n > qp->max_read_sge;
}

static void set_bind(struct soft_send *s, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	s->swap = ((struct soft_mw *)mw)->id;
	s->rkey = rkey;
	s->remote_addr = info->addr;
	s->compare_add = info->length;
	s->bind_lkey = info->mr ? info->mr->lkey : 0;
	s->bind_access = info->mw_access_flags;
}

static int set_send(const struct soft_qp *qp, struct soft_send *s, const struct ibv_send_wr *wr)
{
	*s = (struct soft_send){
		.id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags, .imm = wr->invalidate_rkey};

	if (qp->ex.qp_base.qp_type == IBV_QPT_XRC_SEND)
		s->remote_qpn = wr->qp_type.xrc.remote_srqn;
	if (lacks(qp, wr->opcode))
		return EINVAL;
	switch (wr->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
		if (qp->ex.qp_base.qp_type != IBV_QPT_UD)
			break;
		if (!wr->wr.ud.ah)
			return EINVAL;
		s->ah = ((struct soft_ah *)wr->wr.ud.ah)->id;
		s->remote_qpn = wr->wr.ud.remote_qpn;
		s->remote_qkey = wr->wr.ud.remote_qkey;
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		s->remote_addr = wr->wr.rdma.remote_addr;
		s->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		s->remote_addr = wr->wr.atomic.remote_addr;
		s->rkey = wr->wr.atomic.rkey;
		s->compare_add = wr->wr.atomic.compare_add;
		s->swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_LOCAL_INV:
		return 0;
	case IBV_WR_BIND_MW:
		if (!wr->bind_mw.mw)
			return EINVAL;
		set_bind(s, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		return 0;
	default:
		return EOPNOTSUPP;
	}
	if (wr->num_sge < 0 || too_many(qp, wr->opcode, wr->num_sge))
		return EINVAL;
	return add_segments(&qp->send, s, wr->sg_list, wr->num_sge);
}

int soft_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct soft_qp *qp = of(ibqp);
	struct soft_wq *q = &qp->send;
	int error = 0;
	uint32_t n;

	if (ibqp->qp_type == IBV_QPT_XRC_RECV) {
		*bad = wr;
		return EINVAL;
	}
	pthread_mutex_lock(&qp->send_lock);
	n = q->posted;
	for (; wr; wr = wr->next) {
		error = !may_send(qp) ? EINVAL : full(q, n) ? ENOMEM : set_send(qp, slot(q, n), wr);
		if (error) {
			*bad = wr;
			break;
		}
		n++;
	}
	publish(q, n);
	pthread_mutex_unlock(&qp->send_lock);
	return error;
}

/* Posts receives. This is permitted in every state but RESET. */
static int post_receives(struct soft_wq *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	uint32_t n = q->posted;
	int error = 0;

	for (; wr; wr = wr->next) {
		struct soft_recv *r = slot(q, n);

		if (__atomic_load_n(&q->state, __ATOMIC_ACQUIRE) == IBV_QPS_RESET || wr->num_sge < 0 ||
		    (uint32_t)wr->num_sge > q->max_sge)
			error = EINVAL;
		else if (full(q, n))
			error = ENOMEM;
		if (error) {
			*bad = wr;
			break;
		}
		*r = (struct soft_recv){.id = wr->wr_id, .num_sge = wr->num_sge};
		if (wr->num_sge)
			memcpy(r->sges, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
		n++;
	}
	soft_tell_posted(q, n);
	/* The engine needs the bell only in the error state, to flush the receives. Otherwise it
	 * takes a receive when a message arrives. */
	__atomic_store_n(&q->posted, n, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&q->state, __ATOMIC_SEQ_CST) == IBV_QPS_ERR)
		soft_ring_bell(q);
	return error;
}

int soft_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct soft_qp *qp = of(ibqp);
	int error;

	if (ibqp->srq || ibqp->qp_type == IBV_QPT_XRC_SEND || ibqp->qp_type == IBV_QPT_XRC_RECV ||
	    (qp->refuses_late && __atomic_load_n(&qp->recv.state, __ATOMIC_ACQUIRE) == IBV_QPS_ERR)) {
		*bad = wr;
		return EINVAL;
	}
	pthread_mutex_lock(&qp->recv_lock);
	error = post_receives(&qp->recv, wr, bad);
	pthread_mutex_unlock(&qp->recv_lock);
	return error;
}

int soft_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct soft_srq *srq = (struct soft_srq *)ibsrq;
	int error;

	pthread_mutex_lock(&srq->lock);
	error = post_receives(&srq->queue, wr, bad);
	pthread_mutex_unlock(&srq->lock);
	return error;
}

/* Binds a window of type 1. The driver chooses its key: each bind changes the low byte. */
int soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	uint32_t rkey = (mw->rkey & ~0xffu) | ((mw->rkey + 1) & 0xff);
	struct ibv_send_wr wr = {.wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags};
	struct ibv_send_wr *bad;
	int error;

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = bind->bind_info;
	error = soft_post_send(qp, &wr, &bad);
	if (!error)
		mw->rkey = rkey;
	return error;
}

/* The functions ibv_wr_* build requests in their slots. If one of them fails, nothing is
 * posted, and wr_complete returns the first error. */

static struct soft_qp *of_ex(struct ibv_qp_ex *ex)
{
	return (struct soft_qp *)ex;
}

static void fail(struct soft_qp *qp, int error)
{
	if (!qp->error)
		qp->error = error;
}

static struct soft_send *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct soft_qp *qp = of_ex(ex);

	if (!qp->error && full(&qp->send, qp->building))
		qp->error = ENOMEM;
	if (lacks(qp, opcode))
		fail(qp, EINVAL);
	/* The ring has one slot more than requests may be posted. After an error, further
	 * requests are built in that slot, and never posted. */
	qp->current = slot(&qp->send, qp->building);
	if (!qp->error)
		qp->building++;
	*qp->current = (struct soft_send){.id = ex->wr_id, .flags = ex->wr_flags, .opcode = opcode};
	return qp->current;
}

void soft_wr_start(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = of_ex(ex);

	pthread_mutex_lock(&qp->send_lock);
	qp->building = qp->send.posted;
	qp->error = may_send(qp) ? 0 : EINVAL;
	qp->current = NULL;
}

int soft_wr_complete(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = of_ex(ex);
	int error = qp->error;

	if (!error)
		publish(&qp->send, qp->building);
	pthread_mutex_unlock(&qp->send_lock);
	return error;
}

void soft_wr_abort(struct ibv_qp_ex *ex)
{
	pthread_mutex_unlock(&of_ex(ex)->send_lock);
}

void soft_wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND);
}

void soft_wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	begin(ex, IBV_WR_SEND_WITH_IMM)->imm = imm;
}

void soft_wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin(ex, IBV_WR_SEND_WITH_INV)->imm = rkey;
}

static struct soft_send *begin_remote(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr)
{
	struct soft_send *s = begin(ex, opcode);

	s->rkey = rkey;
	s->remote_addr = addr;
	return s;
}

void soft_wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin_remote(ex, IBV_WR_RDMA_WRITE, rkey, addr);
}

void soft_wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	begin_remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr)->imm = imm;
}

void soft_wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin_remote(ex, IBV_WR_RDMA_READ, rkey, addr);
}

void soft_wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct soft_send *s = begin_remote(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);

	s->compare_add = compare;
	s->swap = swap;
}

void soft_wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin_remote(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr)->compare_add = add;
}

void soft_wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *data)
{
	struct soft_send *s = begin_remote(ex, IBV_WR_ATOMIC_WRITE, rkey, addr);

	memcpy(&s->compare_add, data, sizeof(s->compare_add));
}

void soft_wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level)
{
	struct soft_send *s = begin_remote(ex, IBV_WR_FLUSH, rkey, addr);

	s->compare_add = len;
	s->swap = (uint64_t)level << 8 | type;
}

void soft_wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin(ex, IBV_WR_LOCAL_INV)->imm = rkey;
}

void soft_wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct soft_send *s = begin(ex, IBV_WR_BIND_MW);

	if (mw)
		set_bind(s, mw, rkey, info);
	else
		fail(of_ex(ex), EINVAL);
}

void soft_wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct soft_qp *qp = of_ex(ex);

	if (!qp->current || !ah) {
		fail(qp, EINVAL);
		return;
	}
	qp->current->ah = ((struct soft_ah *)ah)->id;
	qp->current->remote_qpn = qpn;
	qp->current->remote_qkey = qkey;
}

void soft_wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	struct soft_qp *qp = of_ex(ex);

	if (!qp->current || qp->ex.qp_base.qp_type != IBV_QPT_XRC_SEND) {
		fail(qp, EINVAL);
		return;
	}
	qp->current->remote_qpn = srqn;
}

void soft_wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *sges)
{
	struct soft_qp *qp = of_ex(ex);

	if (!qp->current || n > qp->send.max_sge || too_many(qp, qp->current->opcode, n)) {
		fail(qp, EINVAL);
		return;
	}
	qp->current->num_sge = n;
	if (n)
		memcpy(qp->current->sges, sges, n * sizeof(*sges));
}

void soft_wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};

	soft_wr_set_sge_list(ex, 1, &sge);
}

void soft_wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *bufs)
{
	struct soft_qp *qp = of_ex(ex);

	if (!qp->current) {
		fail(qp, EINVAL);
		return;
	}
	qp->current->flags |= IBV_SEND_INLINE;
	qp->current->inline_len = 0;
	for (size_t i = 0; i < n; i++) {
		if (add_inline(&qp->send, qp->current, bufs[i].addr, bufs[i].length)) {
			fail(qp, EINVAL);
			return;
		}
	}
}

void soft_wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf buf = {.addr = addr, .length = length};

	soft_wr_set_inline_data_list(ex, 1, &buf);
}

/* The device does not support these requests. A queue pair cannot be created with them, either. */

static void refuse(struct ibv_qp_ex *ex)
{
	fail(of_ex(ex), EOPNOTSUPP);
}

void soft_wr_send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	refuse(ex);
}

/* Sets the function for a kind of request, if the queue pair was created for that kind. */
#define OP(flag, name) \
	do { \
		if (ops & (flag)) \
			ex->name = soft_qp_ex.name; \
	} while (0)

void soft_set_wr_ops(struct ibv_qp_ex *ex, uint64_t ops)
{
	ex->wr_start = soft_qp_ex.wr_start;
	ex->wr_complete = soft_qp_ex.wr_complete;
	ex->wr_abort = soft_qp_ex.wr_abort;
	ex->wr_set_ud_addr = soft_qp_ex.wr_set_ud_addr;
	ex->wr_set_xrc_srqn = soft_qp_ex.wr_set_xrc_srqn;
	ex->wr_set_sge = soft_qp_ex.wr_set_sge;
	ex->wr_set_sge_list = soft_qp_ex.wr_set_sge_list;
	ex->wr_set_inline_data = soft_qp_ex.wr_set_inline_data;
	ex->wr_set_inline_data_list = soft_qp_ex.wr_set_inline_data_list;
	OP(IBV_QP_EX_WITH_SEND, wr_send);
	OP(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm);
	OP(IBV_QP_EX_WITH_SEND_WITH_INV, wr_send_inv);
	OP(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write);
	OP(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm);
	OP(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read);
	OP(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp);
	OP(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add);
	OP(IBV_QP_EX_WITH_FLUSH, wr_flush);
	OP(IBV_QP_EX_WITH_ATOMIC_WRITE, wr_atomic_write);
	OP(IBV_QP_EX_WITH_LOCAL_INV, wr_local_inv);
	OP(IBV_QP_EX_WITH_BIND_MW, wr_bind_mw);
}

struct ibv_qp_ex *soft_ibv_qp_to_qp_ex(struct ibv_qp *ibqp)
{
	return of(ibqp)->extended ? &of(ibqp)->ex : NULL;
}
