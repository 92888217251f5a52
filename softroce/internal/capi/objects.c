// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bell.h"

/* Returns the smallest power of two that is at least n. */
static uint32_t round_up(uint32_t n)
{
	uint32_t size = 1;

	while (size < n)
		size *= 2;
	return size;
}

uint32_t soft_ring_size(uint32_t max)
{
	return round_up(max + 1);
}

/* Memory of queues from C's allocator. That of destroyed queues serves new ones: the allocator would give
 * it back to the system, and each page would have to be found anew. */
struct memory {
	union {
		size_t size; /* in bytes, with this header */
		max_align_t alignment;
	};
	struct memory *next; /* if it is spare; where the queue begins otherwise */
};

#define HEADER offsetof(struct memory, next)
#define SMALLEST 4096 /* bytes; glibc has larger memory than LARGEST from the system each time */
#define LARGEST (128 << 10)
#define MAX_SPARE (64 << 20) /* bytes in all: as many as glibc keeps at most */
#define LISTS 16

static struct {
	pthread_mutex_t lock;
	struct memory *lists[LISTS];
	size_t size;
} spare = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Returns the list of spare memory of this size, which may also have some of other sizes. */
static struct memory **list_of(size_t size)
{
	return &spare.lists[size / 64 % LISTS];
}

/* Returns memory for n elements, which is not zeroed. */
static void *take(uint64_t n, uint64_t size)
{
	struct memory *m = NULL, **at;
	size_t all;

	if (size && n > (SIZE_MAX - HEADER - 64) / size) {
		errno = ENOMEM;
		return NULL;
	}
	all = (HEADER + n * size + 63) & ~(size_t)63;
	if (SMALLEST <= all && all <= LARGEST) {
		pthread_mutex_lock(&spare.lock);
		at = list_of(all);
		while (*at && (*at)->size != all)
			at = &(*at)->next;
		m = *at;
		if (m) {
			*at = m->next;
			spare.size -= all;
		}
		pthread_mutex_unlock(&spare.lock);
	}
	if (!m)
		m = malloc(all);
	if (!m)
		return NULL;
	m->size = all;
	return (char *)m + HEADER;
}

static void give(void *queue)
{
	struct memory *m, **list;

	if (!queue)
		return;
	m = (struct memory *)((char *)queue - HEADER);
	if (SMALLEST <= m->size && m->size <= LARGEST) {
		pthread_mutex_lock(&spare.lock);
		if (spare.size + m->size <= MAX_SPARE) {
			spare.size += m->size;
			list = list_of(m->size);
			m->next = *list;
			*list = m;
			m = NULL;
		}
		pthread_mutex_unlock(&spare.lock);
	}
	free(m);
}

#define ALIGNMENT 64 /* of a queue's memory, in bytes: a cache line */
#define USE_DEFAULT ((void *)-1) /* IBV_ALLOCATOR_USE_DEFAULT */

void *soft_alloc_queue(const struct soft_allocator **from, uint64_t n, uint64_t size, uint64_t resource)
{
	const struct soft_allocator *a = *from;
	void *memory;

	if (a) {
		memory = a->alloc(a->pd, a->context, n * size, ALIGNMENT, resource);
		if (!memory) {
			errno = ENOMEM;
			return NULL;
		}
		if (memory != USE_DEFAULT) {
			if ((uintptr_t)memory % ALIGNMENT) {
				soft_free_queue(a, memory, resource);
				errno = EINVAL;
				return NULL;
			}
			return memory;
		}
	}
	*from = NULL;
	return take(n, size);
}

void soft_free_queue(const struct soft_allocator *from, void *memory, uint64_t resource)
{
	if (!from)
		give(memory);
	else if (from->free && memory)
		from->free(from->pd, from->context, memory, resource);
}

/* Sets up a queue for max requests. A slot has room for the struct at its beginning, of first
 * bytes, and for bytes more bytes. The slots come from *from, as soft_alloc_queue says. The
 * result is 0, or -1 with errno set. */
static int set_up(struct soft_wq *q, uint32_t max, size_t first, size_t bytes, uint32_t max_sge,
		  const struct soft_allocator **from, uint64_t resource)
{
	q->max = max;
	q->size = soft_ring_size(max);
	q->stride = (first + bytes + 7) & ~(size_t)7;
	q->max_sge = max_sge;
	if (!max)
		*from = NULL; /* a program need not care for a queue that it does not have */
	q->slots = soft_alloc_queue(from, q->size, q->stride, resource);
	return q->slots ? 0 : -1;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

void soft_take_one(int fd)
{
	uint64_t one;
	struct iovec to = {&one, sizeof(one)};

	(void)!preadv2(fd, &to, 1, -1, RWF_NOWAIT);
}

int soft_memory_file(const char *text, size_t length)
{
	int fd = memfd_create("softroce", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int e;

	if (fd < 0)
		return -1;
	if (write(fd, text, length) == (ssize_t)length &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
		return fd;
	e = errno;
	close(fd);
	errno = e;
	return -1;
}

void soft_init_context(struct ibv_context *context)
{
	pthread_mutex_init(&context->mutex, NULL);
}

struct soft_qp *soft_new_qp(uint32_t max_send, uint32_t max_send_sge, uint32_t max_inline, uint32_t max_recv, uint32_t max_recv_sge,
			    uint64_t send_ops, uint32_t lacks, uint32_t max_read_sge, int refuses_late, const struct soft_allocator *allocator)
{
	struct soft_qp *qp = calloc(1, sizeof(*qp));
	int e;

	if (!qp)
		return NULL;
	qp->send_from = qp->recv_from = allocator;
	pthread_mutex_init(&qp->send_lock, NULL);
	pthread_mutex_init(&qp->recv_lock, NULL);
	pthread_mutex_init(&qp->ex.qp_base.mutex, NULL);
	pthread_cond_init(&qp->ex.qp_base.cond, NULL);
	if (set_up(&qp->send, max_send, sizeof(struct soft_send), larger(max_send_sge * sizeof(struct ibv_sge), max_inline),
		   max_send_sge, &qp->send_from, SOFT_RESOURCE_QP) ||
	    set_up(&qp->recv, max_recv, sizeof(struct soft_recv), max_recv_sge * sizeof(struct ibv_sge), max_recv_sge,
		   &qp->recv_from, SOFT_RESOURCE_QP)) {
		e = errno;
		soft_free_qp(qp);
		errno = e;
		return NULL;
	}
	qp->send.max_inline = max_inline;
	qp->extended = send_ops != 0;
	qp->lacks = lacks;
	qp->max_read_sge = max_read_sge;
	qp->refuses_late = refuses_late;
	soft_set_wr_ops(&qp->ex, send_ops);
	return qp;
}

void soft_free_qp(struct soft_qp *qp)
{
	pthread_mutex_destroy(&qp->send_lock);
	pthread_mutex_destroy(&qp->recv_lock);
	pthread_mutex_destroy(&qp->ex.qp_base.mutex);
	pthread_cond_destroy(&qp->ex.qp_base.cond);
	soft_free_queue(qp->send_from, qp->send.slots, SOFT_RESOURCE_QP);
	soft_free_queue(qp->recv_from, qp->recv.slots, SOFT_RESOURCE_QP);
	free(qp);
}

struct soft_cq *soft_new_cq(uint32_t entries, uint64_t wc_flags, int extended, int unsolicited, const struct soft_allocator *allocator)
{
	struct soft_cq *cq = calloc(1, sizeof(*cq));
	int e;

	if (!cq)
		return NULL;
	cq->from = allocator;
	cq->unsolicited = unsolicited;
	pthread_mutex_init(&cq->lock, NULL);
	pthread_mutex_init(&cq->ex.mutex, NULL);
	pthread_cond_init(&cq->ex.cond, NULL);
	cq->ring.max = entries;
	cq->ring.size = soft_ring_size(entries);
	cq->ring.entries = soft_alloc_queue(&cq->from, cq->ring.size, sizeof(*cq->ring.entries), SOFT_RESOURCE_CQ);
	e = cq->ring.entries ? soft_list_cq(cq) : errno;
	if (e) {
		soft_free_cq(cq);
		errno = e;
		return NULL;
	}
	if (extended)
		soft_set_readers(&cq->ex, wc_flags);
	return cq;
}

void soft_free_cq(struct soft_cq *cq)
{
	pthread_mutex_destroy(&cq->lock);
	pthread_mutex_destroy(&cq->ex.mutex);
	pthread_cond_destroy(&cq->ex.cond);
	soft_free_queue(cq->from, cq->ring.entries, SOFT_RESOURCE_CQ);
	free(cq);
}

struct soft_srq *soft_new_srq(uint32_t max, uint32_t max_sge, const struct soft_allocator *allocator)
{
	struct soft_srq *srq = calloc(1, sizeof(*srq));
	int e;

	if (!srq)
		return NULL;
	srq->from = allocator;
	pthread_mutex_init(&srq->lock, NULL);
	pthread_mutex_init(&srq->srq.mutex, NULL);
	pthread_cond_init(&srq->srq.cond, NULL);
	srq->queue.state = IBV_QPS_RTS; /* receives can always be posted */
	if (set_up(&srq->queue, max, sizeof(struct soft_recv), max_sge * sizeof(struct ibv_sge), max_sge, &srq->from,
		   SOFT_RESOURCE_SRQ)) {
		e = errno;
		soft_free_srq(srq);
		errno = e;
		return NULL;
	}
	return srq;
}

void soft_free_srq(struct soft_srq *srq)
{
	pthread_mutex_destroy(&srq->lock);
	pthread_mutex_destroy(&srq->srq.mutex);
	pthread_cond_destroy(&srq->srq.cond);
	soft_free_queue(srq->from, srq->queue.slots, SOFT_RESOURCE_SRQ);
	free(srq);
}

/* Returns 0, EFAULT if the device memory does not have the bytes, or EINVAL if they are not
 * whole words of 4 bytes, as rdma-core's driver mlx5 does. */
static int within(const struct soft_dm *dm, uint64_t offset, uint64_t length)
{
	if (offset > dm->length || length > dm->length - offset)
		return EFAULT;
	return (offset | length) % 4 ? EINVAL : 0;
}

static int copy_to_dm(struct ibv_dm *to, uint64_t offset, const void *from, size_t length)
{
	struct soft_dm *dm = (struct soft_dm *)to;
	int err = within(dm, offset, length);

	if (!err && length)
		memcpy(dm->memory + offset, from, length);
	return err;
}

static int copy_from_dm(void *to, struct ibv_dm *from, uint64_t offset, size_t length)
{
	struct soft_dm *dm = (struct soft_dm *)from;
	int err = within(dm, offset, length);

	if (!err && length)
		memcpy(to, dm->memory + offset, length);
	return err;
}

struct ibv_dm *soft_new_dm(uint8_t *memory, uint64_t length)
{
	struct soft_dm *dm = calloc(1, sizeof(*dm));

	if (!dm)
		return NULL;
	dm->dm.memcpy_to_dm = copy_to_dm;
	dm->dm.memcpy_from_dm = copy_from_dm;
	dm->memory = memory;
	dm->length = length;
	return &dm->dm;
}

void soft_lock_qp(struct soft_qp *qp)
{
	pthread_mutex_lock(&qp->send_lock);
	pthread_mutex_lock(&qp->recv_lock);
}

void soft_unlock_qp(struct soft_qp *qp)
{
	pthread_mutex_unlock(&qp->recv_lock);
	pthread_mutex_unlock(&qp->send_lock);
}

void soft_lock_cq(struct soft_cq *cq)
{
	pthread_mutex_lock(&cq->lock);
}

void soft_unlock_cq(struct soft_cq *cq)
{
	pthread_mutex_unlock(&cq->lock);
}

void soft_lock_srq(struct soft_srq *srq)
{
	pthread_mutex_lock(&srq->lock);
}

void soft_unlock_srq(struct soft_srq *srq)
{
	pthread_mutex_unlock(&srq->lock);
}
