// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#define _GNU_SOURCE /* ppoll */
#include "datapath.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "../../generated/libibverbs/abi.h"

/* A completion of any queue. Go has the same struct. */
struct verbena_wc {
	struct ibv_wc wc;
	uint64_t timestamp;
	uint64_t wallclock;
	uint64_t tag;
	uint32_t tag_data;
	uint32_t flow_tag;
	uint16_t cvlan;
	uint32_t slid; /* 32 bits of the SLID; wc.slid has the low 16 */
};
_Static_assert(sizeof(struct verbena_wc) == VERBENA_WC_SIZE && offsetof(struct verbena_wc, cvlan) == 80 &&
		       offsetof(struct verbena_wc, slid) == 84, "struct verbena_wc");

#define READ(flag, reader, to) \
	do { \
		if (fields & (flag)) \
			to = cq->reader(cq); \
	} while (0)

#define DATAGRAM \
	(IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS)
#define RARE \
	(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_CVLAN | \
	 IBV_WC_EX_WITH_TM_INFO)

static void read_datagram(struct ibv_cq_ex *cq, uint64_t fields, struct verbena_wc *out)
{
	READ(IBV_WC_EX_WITH_SRC_QP, read_src_qp, out->wc.src_qp);
	READ(IBV_WC_EX_WITH_SLID, read_slid, out->slid);
	out->wc.slid = out->slid;
	READ(IBV_WC_EX_WITH_SL, read_sl, out->wc.sl);
	READ(IBV_WC_EX_WITH_DLID_PATH_BITS, read_dlid_path_bits, out->wc.dlid_path_bits);
}

static void read_rare(struct ibv_cq_ex *cq, uint64_t fields, struct verbena_wc *out)
{
	READ(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, read_completion_wallclock_ns, out->wallclock);
	READ(IBV_WC_EX_WITH_FLOW_TAG, read_flow_tag, out->flow_tag);
	READ(IBV_WC_EX_WITH_CVLAN, read_cvlan, out->cvlan);
	if (fields & IBV_WC_EX_WITH_TM_INFO) {
		struct ibv_wc_tm_info info = {0};

		cq->read_tm_info(cq, &info);
		out->tag = info.tag;
		out->tag_data = info.priv;
	}
}

/* Clears the fields that struct ibv_wc does not have. */
static inline void clear_rest(struct verbena_wc *out)
{
	memset((uint8_t *)out + sizeof(out->wc), 0, sizeof(*out) - sizeof(out->wc));
}

static void read_one(struct ibv_cq_ex *cq, uint64_t fields, struct verbena_wc *out)
{
	/* Cleared in two parts: gcc clears more than 64 bytes with a slow loop. */
	out->wc = (struct ibv_wc){.wr_id = cq->wr_id, .status = cq->status};
	clear_rest(out);
	READ(IBV_WC_EX_WITH_QP_NUM, read_qp_num, out->wc.qp_num);
	if (cq->status != IBV_WC_SUCCESS) {
		if (cq->read_vendor_err)
			out->wc.vendor_err = cq->read_vendor_err(cq);
		if (cq->status != IBV_WC_TM_RNDV_INCOMPLETE) /* for this status, the message has arrived */
			return; /* no other field of a failed completion is valid */
	}
	READ(VERBENA_OPCODE, read_opcode, out->wc.opcode);
	READ(VERBENA_WC_FLAGS, read_wc_flags, out->wc.wc_flags);
	READ(IBV_WC_EX_WITH_BYTE_LEN, read_byte_len, out->wc.byte_len);
	/* read_imm_data also returns an invalidated key. */
	if (out->wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV))
		READ(IBV_WC_EX_WITH_IMM, read_imm_data, out->wc.imm_data);
	if (fields & DATAGRAM)
		read_datagram(cq, fields, out);
	READ(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, read_completion_ts, out->timestamp);
	if (fields & RARE)
		read_rare(cq, fields, out);
}

/* Returns the number of completions it read, or C's failure. */
static int64_t poll_extended(struct ibv_cq_ex *cq, uint64_t fields, int64_t max, struct verbena_wc *out,
			     struct verbena_polled *p)
{
	struct ibv_poll_cq_attr attr = {0};
	int64_t n = 0;
	int error = 0;

	while (n < max) {
		errno = 0;
		error = cq->start_poll(cq, &attr);
		if (error)
			break;
		do {
			read_one(cq, fields, &out[n++]);
			if (n == max || (fields & VERBENA_ONE_BY_ONE))
				break;
			error = cq->next_poll(cq);
		} while (!error);
		cq->end_poll(cq);
		if (error)
			break;
	}
	/* Completions that were read must not be lost. The next call meets the error again. */
	if (n > 0 || !error || error == ENOENT)
		return n;
	p->error = errno;
	return error > 0 ? -error : error;
}

/* Two words in one vector, to move a struct ibv_wc with few instructions. */
typedef uint64_t words __attribute__((vector_size(16), aligned(8), may_alias));
_Static_assert(sizeof(struct ibv_wc) == 3 * sizeof(words), "struct ibv_wc");

/* Moves n completions, which ibv_poll_cq wrote one after another to the beginning of
 * out, to their places. The last one goes first, because its place is behind all
 * those still to move. */
static void spread(struct verbena_wc *out, int64_t n)
{
	const struct ibv_wc *dense = (const struct ibv_wc *)out;

	while (--n > 0) {
		const words *from = (const words *)&dense[n];
		words *to = (words *)&out[n].wc;
		words first = from[0], second = from[1], third = from[2]; /* read before the writes, because source and place may overlap */

		to[0] = first;
		to[1] = second;
		to[2] = third;
		clear_rest(&out[n]);
	}
	clear_rest(out); /* the first one is in its place */
}

/* Returns the result of poll_once if ibv_poll_cq returned n, neither 0 nor 1. */
static __attribute__((noinline)) int64_t poll_answered(struct ibv_cq *cq, int n, int64_t max, struct verbena_wc *out,
						       struct verbena_polled *p)
{
	if (n < 0) {
		p->error = errno;
		return n;
	}
	/* If a provider lacks the operation, libibverbs returns EOPNOTSUPP, even when
	 * asked for no completions. */
	if (n == EOPNOTSUPP && cq->context->ops.poll_cq(cq, 0, &out->wc) == EOPNOTSUPP)
		return -EOPNOTSUPP;
	if (n <= max)
		spread(out, n);
	return n;
}

static inline int64_t poll_once(uint8_t *p_cq, uint64_t fields, int64_t max, struct verbena_wc *out,
				struct verbena_polled *p)
{
	struct ibv_cq *cq = (struct ibv_cq *)p_cq;
	int n;

	if (fields & VERBENA_EXTENDED)
		return poll_extended((struct ibv_cq_ex *)p_cq, fields, max, out, p);
	errno = 0;
	if (!cq->context->ops.poll_cq)
		return -EOPNOTSUPP;
	n = cq->context->ops.poll_cq(cq, max, &out->wc);
	if (n == 1) {
		clear_rest(out);
		return 1;
	}
	return n ? poll_answered(cq, n, max, out, p) : 0;
}

void verbena_poll(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, uint8_t *polled)
{
	struct verbena_polled *p = (struct verbena_polled *)polled;

	p->value = poll_once(cq, fields, max, (struct verbena_wc *)out, p);
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Polls. If there are no completions, arms the queue and polls again. */
static void poll_or_arm(uint8_t *p_cq, uint64_t fields, int64_t max, struct verbena_wc *out, int32_t solicited,
			struct verbena_polled *p)
{
	struct ibv_cq *cq = (struct ibv_cq *)p_cq;

	p->value = poll_once(p_cq, fields, max, out, p);
	if (p->value != 0)
		return;
	p->step = VERBENA_ARMING;
	p->value = -EOPNOTSUPP;
	if (!cq->context->ops.req_notify_cq)
		return;
	errno = 0;
	p->value = cq->context->ops.req_notify_cq(cq, solicited);
	p->error = errno;
	if (p->value != 0)
		return;
	/* Completions from before the queue was armed raise no event. */
	p->step = VERBENA_POLLING;
	p->value = poll_once(p_cq, fields, max, out, p);
}

void verbena_poll_or_arm(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int32_t solicited, uint8_t *polled)
{
	poll_or_arm(cq, fields, max, (struct verbena_wc *)out, solicited, (struct verbena_polled *)polled);
}

static int (*get_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
static void (*ack_events)(struct ibv_cq *, unsigned int);

void verbena_set_event_function(int32_t i, void *function)
{
	*(i == 0 ? (void **)&get_event : (void **)&ack_events) = function;
}

void verbena_take_event(uint8_t *channel, uint8_t *polled)
{
	struct verbena_polled *p = (struct verbena_polled *)polled;
	struct ibv_cq *of = NULL;
	void *context;

	if (!get_event || !ack_events) {
		p->error = EOPNOTSUPP;
		p->value = -1;
		return;
	}
	errno = 0;
	p->value = get_event((struct ibv_comp_channel *)channel, &of, &context);
	p->error = errno;
	if (p->value)
		return;
	ack_events(of, 1); /* at once, so that destroying the queue never waits for it */
	p->other = (uint8_t *)of;
}

/* Waits for an event and takes it off the channel. Returns a negative errno on
 * failure. */
static int wait_event(struct ibv_cq *cq, int64_t budget, struct verbena_polled *p)
{
	struct pollfd fd = {.fd = cq->channel->fd, .events = POLLIN};
	struct timespec t = {.tv_nsec = budget}; /* less than a second */
	struct ibv_cq *of = NULL;
	void *context;

	if (!get_event || !ack_events)
		return -EOPNOTSUPP;
	if (ppoll(&fd, 1, &t, NULL) == 0)
		return 0;
	if (get_event(cq->channel, &of, &context)) {
		p->error = errno;
		/* Another thread took the event, or a signal interrupted the call. */
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	}
	ack_events(of, 1); /* at once, so that destroying the queue never waits for it */
	if (of == cq)
		p->events++;
	else
		p->other = (uint8_t *)of;
	return 0;
}

/* Sleeps until there are least completions, or until an event for another queue
 * arrives. On failure, some completions may have arrived. */
static int64_t sleep_for(uint8_t *p_cq, uint64_t fields, int64_t least, int64_t max, struct verbena_wc *out,
			 int32_t solicited, int64_t budget, struct verbena_polled *p)
{
	struct ibv_cq *cq = (struct ibv_cq *)p_cq;
	int64_t n = 0, late = 0;

	for (;;) {
		poll_or_arm(p_cq, fields, max - n, out + n, solicited, p);
		if (p->value < 0)
			return n ? n : p->value;
		n += p->value;
		if (n >= least)
			return n;
		if (p->value > 0)
			continue; /* the queue was not armed, since it had completions */
		p->now = now();
		if (!late)
			late = p->now + budget;
		if (p->now >= late)
			return n;
		p->value = wait_event(cq, late - p->now, p);
		if (p->value < 0) {
			p->step = VERBENA_READING;
			return n ? n : p->value;
		}
		if (p->other)
			return n;
	}
}

void verbena_sleep(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int32_t solicited, int64_t budget,
		   uint8_t *polled)
{
	struct verbena_polled *p = (struct verbena_polled *)polled;

	p->value = sleep_for(cq, fields, 1, max, (struct verbena_wc *)out, solicited, budget, p);
}

void verbena_look(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, uint8_t *polled)
{
	struct verbena_polled *p = (struct verbena_polled *)polled;

	p->value = poll_once(cq, fields, max, (struct verbena_wc *)out, p);
	p->now = now();
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Reading the clock costs as much as a poll or two. */
#define LOOKS_PER_CLOCK 8

/* Spins until there are least completions. If it fails after some have arrived, the
 * next call meets the error again. */
static inline int64_t spin(uint8_t *cq, uint64_t fields, int64_t least, int64_t max, struct verbena_wc *out,
			   int64_t budget, struct verbena_polled *p)
{
	int64_t n = poll_once(cq, fields, max, out, p), more, late;
	int looks = 0;

	if (n < 0 || n >= least || budget <= 0)
		return n;
	p->now = now();
	late = p->now + budget;
	do {
		relax();
		more = poll_once(cq, fields, max - n, out + n, p);
		if (more < 0)
			return n ? n : more;
		n += more;
		if (++looks % LOOKS_PER_CLOCK == 0)
			p->now = now();
	} while (n < least && p->now < late);
	return n;
}

void verbena_spin(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int64_t budget, uint8_t *polled)
{
	struct verbena_polled *p = (struct verbena_polled *)polled;

	p->value = spin(cq, fields, 1, max, (struct verbena_wc *)out, budget, p);
}

void verbena_exchange(uint8_t *qp, uint8_t *receives, uint8_t *ex, uint64_t ops, uint8_t *requests, uint8_t *cq,
		      uint64_t fields, int64_t least, int64_t max, uint8_t *out, int32_t how, int64_t budget,
		      uint8_t *exchanged)
{
	struct verbena_exchanged *e = (struct verbena_exchanged *)exchanged;
	struct verbena_polled *p = &e->polled;
	struct verbena_wc *wcs = (struct verbena_wc *)out;

	if (receives) {
		verbena_post_recv(qp, receives, (uint8_t *)&e->received);
		if (e->received.value != 0)
			return;
	}
	if (requests) {
		verbena_post_send(ex, ops, requests, (uint8_t *)&e->sent);
		if (e->sent.value != 0)
			return;
	}
	if (how == VERBENA_SPIN)
		p->value = spin(cq, fields, least, max, wcs, budget, p);
	else
		p->value = sleep_for(cq, fields, least, max, wcs, how == VERBENA_SLEEP_SOLICITED, budget, p);
}
