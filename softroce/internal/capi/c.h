// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stddef.h>
#include <stdint.h>

/* The functions that Go calls. Nothing else is here, since cgo takes longer if it reads more. */

struct ibv_context;
struct ibv_dm;
struct ibv_pd;
struct soft_qp;
struct soft_cq;
struct soft_srq;
struct soft_wq;

/* Whether this process was forked by the process that has the device. It lacks the threads of
 * Go's runtime, so that it must not call Go. */
extern int soft_forked;

/* Makes soft_forked true in processes that this process forks, also if C code forks them. */
int soft_watch_fork(void);

/* Return the address of an exported function, or NULL if none has that name. */
void *soft_libibverbs_function(const char *name);
void *soft_librdmacm_function(const char *name);

/* Returns the address of the function that Go calls as ibv_create_cq. */
void *soft_own_create_cq_function(void);

/* Returns a struct of operations. i is its number in verbs_skeleton.h. */
const void *soft_table(int i);

/* Returns the number of slots of a ring in which at most max slots are in use: a power of two
 * that is larger than max. One more slot is needed for a request that is built but not posted. */
uint32_t soft_ring_size(uint32_t max);

/* Returns the descriptor of a new file in memory with length bytes of text, which cannot be changed. It
 * returns -1 and sets errno if that fails. */
int soft_memory_file(const char *text, size_t length);

/* Decreases a semaphore by one, unless it is 0. Does nothing before Linux 5.8. */
void soft_take_one(int fd);

void soft_init_context(struct ibv_context *context);

/* The functions with which a program allocates memory for the queues of a parent domain. */
struct soft_allocator {
	struct ibv_pd *pd;
	void *(*alloc)(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t resource);
	void (*free)(struct ibv_pd *pd, void *context, void *memory, uint64_t resource); /* NULL: the memory is not freed */
	void *context;
};

/* The resources that programs allocate memory for. The upper 32 bits are the driver's number,
 * RDMA_DRIVER_UNKNOWN. */
enum { SOFT_RESOURCE_QP, SOFT_RESOURCE_CQ, SOFT_RESOURCE_SRQ };

/* Allocate and free zeroed memory for n elements of a queue, of size bytes each. *from is the allocator to
 * use, or NULL for C's. soft_alloc_queue sets *from to the one that has the memory: the program's allocator
 * may leave the work to C's. It returns NULL and sets errno if it fails. */
void *soft_alloc_queue(const struct soft_allocator **from, uint64_t n, uint64_t size, uint64_t resource);
void soft_free_queue(const struct soft_allocator *from, void *memory, uint64_t resource);

/* Make and free objects whose queues have the given limits. The memory of queues comes from the
 * allocator, or from C's if that is NULL. The functions that make an object return NULL and set
 * errno if there is not enough memory. */
struct soft_qp *soft_new_qp(uint32_t max_send, uint32_t max_send_sge, uint32_t max_inline, uint32_t max_recv, uint32_t max_recv_sge,
			    uint64_t send_ops, uint32_t lacks, uint32_t max_read_sge, int refuses_late, const struct soft_allocator *allocator);
void soft_free_qp(struct soft_qp *qp);
struct soft_cq *soft_new_cq(uint32_t entries, uint64_t wc_flags, int extended, int unsolicited, const struct soft_allocator *allocator);
void soft_free_cq(struct soft_cq *cq);
struct soft_srq *soft_new_srq(uint32_t max, uint32_t max_sge, const struct soft_allocator *allocator);
void soft_free_srq(struct soft_srq *srq);

/* Makes device memory of a program, with the functions that copy to and from it. It returns
 * NULL if there is not enough memory. */
struct ibv_dm *soft_new_dm(uint8_t *memory, uint64_t length);

/* Adds a queue to the table of queues, in which events look it up, and sets its id. */
int soft_list_cq(struct soft_cq *cq);
/* Removes a queue from the table. Then it waits until the program has acknowledged all
 * events of the queue that ibv_get_cq_event has returned, or until soft_release_cq. */
void soft_retire_cq(struct soft_cq *cq);
/* Makes soft_retire_cq return without waiting any longer. */
void soft_release_cq(struct soft_cq *cq);

/* Lock and unlock an object, so that no thread posts to it or polls it. */
void soft_lock_qp(struct soft_qp *qp);
void soft_unlock_qp(struct soft_qp *qp);
void soft_lock_srq(struct soft_srq *srq);
void soft_unlock_srq(struct soft_srq *srq);
void soft_lock_cq(struct soft_cq *cq);
void soft_unlock_cq(struct soft_cq *cq);

/* The doorbell. Threads that post ring it, which wakes package node's worker. Go's
 * node.Doorbell explains the fields. */
struct soft_bell {
	struct soft_wq *rung; /* list of queues, linked by their field next */
	uint32_t own;
	uint32_t arms;
	uint32_t dozing;
	uint32_t tells; /* what must know of requests and completions: 0 or one of the following */
};
#define SOFT_TELLS_DETECTOR 1
#define SOFT_TELLS_CHECK 2
struct soft_bell *soft_bell(void);

/* Starts the check of the memory of requests. abort_at_once says whether the process ends with the
 * first report. origin returns the stack of the Go function that posts in this thread, as text, or
 * NULL. It has the type const char *(void). The result is an error number if the system does not let
 * the process read and write its memory by system calls, and otherwise 0. */
int soft_check_start(int abort_at_once, void *origin);

/* Ends the check, also of requests in progress. The result is 0 if an earlier call has ended it. */
int soft_check_end(void);

/* Make queues known to the check. number is that of the queue pair, and device identifies the device.
 * The requests of a queue that is dropped will not complete, and no thread may post to the queue
 * meanwhile. Those of one that is exempt may complete without a completion. */
enum { SOFT_CHECK_SEND, SOFT_CHECK_RECEIVE, SOFT_CHECK_SHARED };
void soft_check_queue(struct soft_wq *q, int kind, uint32_t number, uint64_t device);
void soft_check_drop(struct soft_wq *q);
void soft_check_exempt(struct soft_wq *q);
void soft_check_queue_gone(struct soft_wq *q);

/* Checks the memory of a request before the device first writes to it. */
void soft_check_writes(uint32_t ticket);

/* Ends the check of a request to whose memory the device has written n bytes that the completion will
 * not count. */
void soft_check_overwritten(uint32_t ticket, uint64_t n);

/* Ends the check of a request that will not complete. */
void soft_check_dropped(uint32_t ticket);

/* Make regions known to the check. iova is how requests refer to the address start. The result, which
 * may be NULL, is to be set to 1 before a peer writes to the memory. */
enum {
	SOFT_CHECK_FILLS = 1, /* the device may write to the memory */
	SOFT_CHECK_OPEN = 2,  /* peers may have access to the memory */
	SOFT_CHECK_NEVER = 4, /* the memory must not be accessed, as it may be paged out */
};
uint32_t *soft_check_region(uint64_t device, uint32_t key, uint64_t iova, uint64_t start, uint64_t length, int flags);
void soft_check_region_gone(uint64_t device, uint32_t key);

/* Sets the word of the bell, and the eventfds to which a thread adds that rings the bell and finds
 * ASLEEP or ATTENDED in the word. */
void soft_set_word(uint32_t *word, int asleep, int attended);

