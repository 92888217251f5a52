// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../../internal/datapath/datapath.h"
#include "bell.h"
#include "call.h"
#include "ring.h"

/* Returns the next completion, or NULL if there is none. The caller holds the queue's lock. */
static struct soft_wc *next(struct soft_cq *cq)
{
	struct soft_ring *r = &cq->ring;

	if (r->polled == __atomic_load_n(&r->added, __ATOMIC_ACQUIRE))
		return NULL;
	return &r->entries[r->polled & (r->size - 1)];
}

/* Frees the entry of a completion, and the slot of its request. */
static void consume(struct soft_cq *cq, struct soft_wc *wc)
{
	if (wc->queue)
		__atomic_store_n(&wc->queue->freed, wc->count, __ATOMIC_RELEASE);
	__atomic_store_n(&cq->ring.polled, cq->ring.polled + 1, __ATOMIC_RELEASE);
}

/* Counts that the caller has found a queue empty. After many empty polls, it lets other threads
 * run: the work for which the caller waits may need its processor. In programs not written in
 * Go, it also runs a step of the worker. Go programs do that in Go, since a call of C that polls
 * must not call Go. */
static void count_empty_poll(struct soft_cq *cq)
{
	uint32_t empty = __atomic_add_fetch(&cq->empty, 1, __ATOMIC_RELAXED);

	if (empty % 16 == 0)
		sched_yield();
	if (soft_for_c && !cq->own && empty >= 16)
		soft_help(cq);
}

static struct ibv_cq *own_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				    struct ibv_comp_channel *channel, int comp_vector)
{
	struct ibv_cq *cq = soft_ibv_create_cq(context, cqe, cq_context, channel, comp_vector);

	if (cq)
		((struct soft_cq *)cq)->own = 1;
	return cq;
}

void *soft_own_create_cq_function(void)
{
	return (void *)own_create_cq;
}

int soft_poll_cq(struct ibv_cq *ibcq, int max, struct ibv_wc *out)
{
	struct soft_cq *cq = (struct soft_cq *)ibcq;
	struct soft_wc *wc;
	int n = 0;

	pthread_mutex_lock(&cq->lock);
	while (n < max && (wc = next(cq))) {
		soft_tell_completed(wc);
		out[n++] = wc->wc;
		consume(cq, wc);
	}
	pthread_mutex_unlock(&cq->lock);
	if (n == 0)
		count_empty_poll(cq);
	return n; /* a queue that has overrun reports that by an event, as on hardware */
}

int soft_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct soft_cq *cq = (struct soft_cq *)ibcq;
	int wakes = solicited_only == VERBENA_WAKE || solicited_only == VERBENA_WAKE_SOLICITED;

	if (cq->unsolicited && (solicited_only == 1 || solicited_only == VERBENA_WAKE_SOLICITED))
		return EOPNOTSUPP;
	if (wakes)
		solicited_only = solicited_only == VERBENA_WAKE_SOLICITED;
	__atomic_store_n(&cq->empty, 0, __ATOMIC_RELAXED); /* the caller waits for an event instead of polling */
	/* A queue that is armed already stays armed for what it was. */
	__atomic_fetch_or(&cq->ring.armed,
	    (wakes ? SOFT_ARMED_WAKE : SOFT_ARMED_EVENT) | (solicited_only ? SOFT_ARMED_SOLICITED : SOFT_ARMED_NEXT),
	    __ATOMIC_SEQ_CST);
	if (!wakes) /* otherwise, the caller attends, or calls Node.Park */
		soft_armed();
	return 0;
}

/* Extended completion queues. The lock is held from start_poll to end_poll. */

static struct soft_cq *soft_cq(struct ibv_cq_ex *ex)
{
	return (struct soft_cq *)ex;
}

static int show(struct soft_cq *cq)
{
	cq->current = next(cq);
	if (!cq->current)
		return ENOENT;
	soft_tell_completed(cq->current);
	cq->ex.wr_id = cq->current->wc.wr_id;
	cq->ex.status = cq->current->wc.status;
	return 0;
}

int soft_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct soft_cq *cq = soft_cq(ex);
	int error;

	if (attr->comp_mask)
		return EINVAL;
	pthread_mutex_lock(&cq->lock);
	error = show(cq);
	if (error) { /* the program must not call end_poll */
		pthread_mutex_unlock(&cq->lock);
		count_empty_poll(cq);
	}
	return error;
}

int soft_next_poll(struct ibv_cq_ex *ex)
{
	struct soft_cq *cq = soft_cq(ex);

	if (cq->current)
		consume(cq, cq->current);
	return show(cq);
}

void soft_end_poll(struct ibv_cq_ex *ex)
{
	struct soft_cq *cq = soft_cq(ex);

	if (cq->current)
		consume(cq, cq->current);
	cq->current = NULL;
	pthread_mutex_unlock(&cq->lock);
}

#define READER(type, name, field) \
	type soft_read_##name(struct ibv_cq_ex *ex) \
	{ \
		return soft_cq(ex)->current->field; \
	}

READER(enum ibv_wc_opcode, opcode, wc.opcode)
READER(uint32_t, vendor_err, wc.vendor_err)
READER(uint32_t, byte_len, wc.byte_len)
READER(__be32, imm_data, wc.imm_data)
READER(uint32_t, qp_num, wc.qp_num)
READER(uint32_t, src_qp, wc.src_qp)
READER(unsigned int, wc_flags, wc.wc_flags)
READER(uint32_t, slid, wc.slid)
READER(uint8_t, sl, wc.sl)
READER(uint8_t, dlid_path_bits, wc.dlid_path_bits)
READER(uint64_t, completion_ts, timestamp)
READER(uint64_t, completion_wallclock_ns, wallclock)

/* Only completions of raw Ethernet have these fields, so no completion queue can be created with
 * them. */

uint16_t soft_read_cvlan(struct ibv_cq_ex *ex)
{
	return 0;
}

uint32_t soft_read_flow_tag(struct ibv_cq_ex *ex)
{
	return 0;
}

void soft_read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *info)
{
	const struct soft_wc *wc = soft_cq(ex)->current;

	*info = (struct ibv_wc_tm_info){.tag = wc->tag, .priv = wc->tag_context};
}

#define READ(flag, name) \
	do { \
		if (wc_flags & (flag)) \
			ex->name = soft_cq_ex.name; \
	} while (0)

void soft_set_readers(struct ibv_cq_ex *ex, uint64_t wc_flags)
{
	ex->start_poll = soft_cq_ex.start_poll;
	ex->next_poll = soft_cq_ex.next_poll;
	ex->end_poll = soft_cq_ex.end_poll;
	ex->read_opcode = soft_cq_ex.read_opcode;
	ex->read_vendor_err = soft_cq_ex.read_vendor_err;
	ex->read_wc_flags = soft_cq_ex.read_wc_flags;
	READ(IBV_WC_EX_WITH_BYTE_LEN, read_byte_len);
	READ(IBV_WC_EX_WITH_IMM, read_imm_data);
	READ(IBV_WC_EX_WITH_QP_NUM, read_qp_num);
	READ(IBV_WC_EX_WITH_SRC_QP, read_src_qp);
	READ(IBV_WC_EX_WITH_SLID, read_slid);
	READ(IBV_WC_EX_WITH_SL, read_sl);
	READ(IBV_WC_EX_WITH_DLID_PATH_BITS, read_dlid_path_bits);
	READ(IBV_WC_EX_WITH_TM_INFO, read_tm_info);
	READ(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, read_completion_ts);
	READ(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, read_completion_wallclock_ns);
}

/* Completion events. A channel's descriptor is a pipe, which carries the ids of the queues that
 * have events. An id consists of the queue's index in a table of queues, and the number of
 * queues that have had this index. So an event of a destroyed queue is recognized and dropped. */

#define CHUNK 1024
#define CHUNKS 1024

struct listing {
	struct soft_cq *cq;
	uint32_t uses;
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct listing *chunks[CHUNKS];
static uint32_t free_hint;

static struct listing *listing(uint64_t id)
{
	uint32_t place = (uint32_t)id;

	if (place / CHUNK >= CHUNKS || !chunks[place / CHUNK])
		return NULL;
	return &chunks[place / CHUNK][place % CHUNK];
}

int soft_list_cq(struct soft_cq *cq)
{
	int error = ENOMEM;

	pthread_mutex_lock(&table_lock);
	for (uint32_t i = 0; i < CHUNK * CHUNKS; i++) {
		uint32_t place = (free_hint + i) % (CHUNK * CHUNKS);
		struct listing **chunk = &chunks[place / CHUNK], *l;

		if (!*chunk) {
			*chunk = calloc(CHUNK, sizeof(**chunk));
			if (!*chunk)
				break;
		}
		l = &(*chunk)[place % CHUNK];
		if (l->cq)
			continue;
		l->cq = cq;
		l->uses++;
		cq->id = (uint64_t)l->uses << 32 | place;
		free_hint = place + 1;
		error = 0;
		break;
	}
	pthread_mutex_unlock(&table_lock);
	return error;
}

int soft_ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	for (;;) {
		struct listing *l;
		uint64_t id;
		ssize_t n = read(channel->fd, &id, sizeof(id));

		if (n != sizeof(id)) {
			if (n >= 0)
				errno = EIO;
			return -1;
		}
		pthread_mutex_lock(&table_lock);
		l = listing(id);
		if (l && l->cq && l->uses == id >> 32) {
			l->cq->given++;
			*cq = (struct ibv_cq *)l->cq;
			*cq_context = l->cq->ex.cq_context;
			pthread_mutex_unlock(&table_lock);
			return 0;
		}
		pthread_mutex_unlock(&table_lock);
	}
}

void soft_ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
	if (!events)
		return;
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += events;
	pthread_cond_broadcast(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

void soft_release_cq(struct soft_cq *cq)
{
	pthread_mutex_lock(&cq->ex.mutex);
	cq->released = 1;
	pthread_cond_broadcast(&cq->ex.cond);
	pthread_mutex_unlock(&cq->ex.mutex);
}

void soft_retire_cq(struct soft_cq *cq)
{
	struct listing *l;

	pthread_mutex_lock(&table_lock);
	l = listing(cq->id);
	if (l && l->cq == cq) {
		l->cq = NULL;
		free_hint = (uint32_t)cq->id;
	}
	pthread_mutex_unlock(&table_lock);
	pthread_mutex_lock(&cq->ex.mutex);
	while (!cq->released && cq->ex.comp_events_completed != cq->given)
		pthread_cond_wait(&cq->ex.cond, &cq->ex.mutex);
	pthread_mutex_unlock(&cq->ex.mutex);
}
