// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include "loops.h"

#include <time.h>

#include "../../../generated/libibverbs/abi.h"

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return qp->context->ops.post_send(qp, wr, &bad);
}

int64_t verbena_loop_post(void *qp, void *wr, int64_t rounds)
{
	int64_t begin = now(), i;

	for (i = 0; i < rounds; i++)
		if (post(qp, wr))
			return -1;
	return now() - begin;
}

/* Fills a list of n sends field by field, as the batch does; with memset it
 * takes three times as long. */
static void fill(struct ibv_send_wr *wr, int32_t n, uint64_t addr, uint32_t lkey)
{
	int i;

	for (i = 0; i < n; i++) {
		*wr[i].sg_list = (struct ibv_sge){addr, 64, lkey};
		wr[i].wr_id = i;
		wr[i].num_sge = 1;
		wr[i].imm_data = 0;
		wr[i].wr.rdma.remote_addr = 0;
		wr[i].qp_type.xrc.remote_srqn = 0;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].send_flags = IBV_SEND_SIGNALED;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
}

int64_t verbena_loop_fill_and_post(void *qp, void *wr, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds)
{
	int64_t begin = now(), i;

	for (i = 0; i < rounds; i++) {
		fill(wr, n, addr, lkey);
		if (post(qp, wr))
			return -1;
	}
	return now() - begin;
}

int64_t verbena_loop_change_and_post(void *qp, void *p_wr, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds)
{
	struct ibv_send_wr *wr = p_wr;
	int64_t begin = now(), i;
	int j;

	for (i = 0; i < rounds; i++) {
		for (j = 0; j < n; j++) {
			*wr[j].sg_list = (struct ibv_sge){addr, 64, lkey};
			wr[j].num_sge = 1;
		}
		if (post(qp, wr))
			return -1;
	}
	return now() - begin;
}

int64_t verbena_loop_fill_and_recv(void *p_qp, void *p_wr, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds)
{
	struct ibv_qp *qp = p_qp;
	struct ibv_recv_wr *wr = p_wr, *bad;
	int64_t begin = now(), i;
	int j;

	for (i = 0; i < rounds; i++) {
		for (j = 0; j < n; j++) {
			*wr[j].sg_list = (struct ibv_sge){addr, 64, lkey};
			wr[j].wr_id = j;
			wr[j].num_sge = 1;
			wr[j].next = j + 1 < n ? &wr[j + 1] : NULL;
		}
		if (qp->context->ops.post_recv(qp, wr, &bad))
			return -1;
	}
	return now() - begin;
}

/* What a program does: fill, post, poll, and look at each completion. */
int64_t verbena_loop_cycle(void *qp, void *wr, void *p_cq, void *p_wc, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds)
{
	struct ibv_cq *cq = p_cq;
	struct ibv_wc *wc = p_wc;
	volatile uint64_t sum = 0;
	int64_t begin = now(), i;
	int j;

	for (i = 0; i < rounds; i++) {
		fill(wr, n, addr, lkey);
		if (post(qp, wr) || cq->context->ops.poll_cq(cq, n, wc) != n)
			return -1;
		for (j = 0; j < n; j++) {
			if (wc[j].status != IBV_WC_SUCCESS)
				return -1;
			sum += wc[j].wr_id;
		}
	}
	return now() - begin;
}

int64_t verbena_loop_send_extended(void *p_qp, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds)
{
	struct ibv_qp_ex *qp = p_qp;
	int64_t begin = now(), i;
	int j;

	for (i = 0; i < rounds; i++) {
		qp->wr_start(qp);
		for (j = 0; j < n; j++) {
			qp->wr_id = j;
			qp->wr_flags = IBV_SEND_SIGNALED;
			qp->wr_send(qp);
			qp->wr_set_sge(qp, lkey, addr, 64);
		}
		if (qp->wr_complete(qp))
			return -1;
	}
	return now() - begin;
}

int64_t verbena_loop_post_extended(void *p_qp, void *p_wr, int64_t rounds)
{
	struct ibv_qp_ex *qp = p_qp;
	struct ibv_send_wr *wr;
	int64_t begin = now(), i;

	for (i = 0; i < rounds; i++) {
		qp->wr_start(qp);
		for (wr = p_wr; wr; wr = wr->next) {
			qp->wr_id = wr->wr_id;
			qp->wr_flags = wr->send_flags;
			qp->wr_send(qp);
			qp->wr_set_sge(qp, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
		}
		if (qp->wr_complete(qp))
			return -1;
	}
	return now() - begin;
}

int64_t verbena_loop_poll(void *p_cq, void *wc, int32_t n, int64_t rounds)
{
	struct ibv_cq *cq = p_cq;
	int64_t begin = now(), i;

	for (i = 0; i < rounds; i++)
		if (cq->context->ops.poll_cq(cq, n, wc) != n)
			return -1;
	return now() - begin;
}

int64_t verbena_loop_poll_extended(void *p_cq, int32_t n, int64_t rounds)
{
	struct ibv_cq_ex *cq = p_cq;
	struct ibv_poll_cq_attr attr = {0};
	volatile uint64_t sum = 0;
	int64_t begin = now(), i;
	int j;

	for (i = 0; i < rounds; i++) {
		if (cq->start_poll(cq, &attr))
			return -1;
		for (j = 1;; j++) {
			sum += cq->wr_id + cq->read_opcode(cq) + cq->read_wc_flags(cq) + cq->read_byte_len(cq) +
			       cq->read_completion_ts(cq);
			if (j == n)
				break;
			if (cq->next_poll(cq))
				return -1;
		}
		cq->end_poll(cq);
	}
	return now() - begin;
}

int64_t verbena_loop_post_and_poll(void *qp, void *wr, void *p_cq, void *wc, int32_t n, int64_t rounds)
{
	struct ibv_cq *cq = p_cq;
	int64_t begin = now(), i;

	for (i = 0; i < rounds; i++)
		if (post(qp, wr) || cq->context->ops.poll_cq(cq, n, wc) != n)
			return -1;
	return now() - begin;
}

void verbena_empty(void *nothing) { (void)nothing; }
