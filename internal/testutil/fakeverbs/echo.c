// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include <stdint.h>

#include "../../../generated/libibverbs/abi.h"
#include "fake.h"

/* Completed requests and receives of all queues that were not polled yet. */
#define PLACES 4096
static struct ibv_wc done[PLACES];
static uint32_t first, last;

static void complete(uint64_t id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc *wc = &done[last++ % PLACES];

	wc->wr_id = id;
	wc->opcode = opcode;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		if (wr->send_flags & IBV_SEND_SIGNALED)
			complete(wr->wr_id, IBV_WC_SEND);
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next)
		complete(wr->wr_id, IBV_WC_RECV);
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int i;

	for (i = 0; i < n && first != last; i++)
		wc[i] = done[first++ % PLACES];
	return i;
}

void verbena_fake_echo(void *context)
{
	struct ibv_context_ops *ops = &((struct ibv_context *)context)->ops;

	ops->post_send = post_send;
	ops->post_recv = post_recv;
	ops->poll_cq = poll_cq;
}
