// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include "loops.h"

#include <fcntl.h>
#include <time.h>

#include "../../../generated/libibverbs/abi.h"

static int (*get_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
static void (*ack_events)(struct ibv_cq *, unsigned int);

/* Functions of libibverbs: ibv_get_cq_event, ibv_ack_cq_events. */
void verbena_loop_event_function(int32_t i, void *f)
{
	if (i == 0)
		*(void **)&get_event = f;
	else
		*(void **)&ack_events = f;
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Polls once. Returns 1 for a successful completion, and 0 if there is none. */
static int poll_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = cq->context->ops.poll_cq(cq, 1, &wc);

	return n == 1 && wc.status != IBV_WC_SUCCESS ? -1 : n;
}

static int spin(struct ibv_cq *cq)
{
	int n;

	while (!(n = poll_one(cq)))
		relax();
	return n;
}

static int wait_event(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_cq *of;
	void *context;
	int n;

	for (;;) {
		n = poll_one(cq);
		if (n)
			return n;
		if (cq->context->ops.req_notify_cq(cq, 0))
			return -1;
		n = poll_one(cq);
		if (n)
			return n;
		if (get_event(channel, &of, &context))
			return -1;
		ack_events(of, 1);
	}
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return qp->context->ops.post_send(qp, wr, &bad);
}

static int send_one(const verbena_end *from, const verbena_end *to, int loud, int wait)
{
	struct ibv_qp *qp = to->qp;
	struct ibv_recv_wr *bad;

	if (post(from->qp, loud ? from->loud : from->quiet))
		return -1;
	if ((wait ? wait_event(to->cq, to->channel) : spin(to->cq)) != 1)
		return -1;
	if (qp->context->ops.post_recv(qp, to->recv, &bad))
		return -1;
	return loud && spin(from->sends) != 1 ? -1 : 0;
}

static int64_t pingpong(const verbena_end *a, const verbena_end *b, int32_t wait, int64_t rounds)
{
	int64_t begin = now(), i;

	for (i = 0; i < rounds; i++)
		if (send_one(a, b, i % 16 == 15, wait) || send_one(b, a, i % 16 == 15, wait))
			return -1;
	return now() - begin;
}

/* A C program waits in the kernel. Go's netpoller needs a descriptor with which
 * it does not. */
static int block(const verbena_end *e, int blocks)
{
	int fd = ((struct ibv_comp_channel *)e->channel)->fd;
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? -1 : fcntl(fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

int64_t verbena_loop_pingpong(const verbena_end *a, const verbena_end *b, int32_t wait, int64_t rounds)
{
	int64_t took;

	if (!wait)
		return pingpong(a, b, 0, rounds);
	if (!get_event || !ack_events || block(a, 1) || block(b, 1))
		return -1;
	took = pingpong(a, b, 1, rounds);
	return block(a, 0) || block(b, 0) ? -1 : took;
}

int64_t verbena_loop_stream(void *qp, void *cq, void *list, int32_t window, int64_t rounds)
{
	int64_t begin = now(), i;
	int under_way = 0;

	for (i = 0; i < rounds; i++) {
		if (under_way == window) {
			if (spin(cq) != 1)
				return -1;
			under_way--;
		}
		if (post(qp, list))
			return -1;
		under_way++;
	}
	while (under_way--)
		if (spin(cq) != 1)
			return -1;
	return now() - begin;
}
