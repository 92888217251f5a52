// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdint.h>

/* What Go calls, and nothing else: the more cgo reads, the longer it takes. */

struct ibv_context;
struct soft_qp;
struct soft_cq;
struct soft_srq;
struct soft_wq;

/* Whether this is the child of a process that has the device: it does not have Go's threads, so that nothing may call Go. */
extern int soft_forked;

/* Makes soft_forked true in children that this process forks, also those of C's. */
int soft_watch_fork(void);

/* Return the address of an exported function, NULL if there is none of that name. */
void *soft_libibverbs_function(const char *name);
void *soft_librdmacm_function(const char *name);

/* Returns a struct of operations, by its number in verbs_skeleton.h. */
const void *soft_table(int i);

/* How many places a ring has of which max may be used: a power of two, and one more at least,
 * for a request that is built and never posted. */
uint32_t soft_places(uint32_t max);

/* Takes one off a semaphore, unless it is 0. Kernels before 5.8 do nothing. */
void soft_take_one(int fd);

void soft_init_context(struct ibv_context *context);

/* Makes objects whose queues have the given numbers of places; NULL and errno if there
 * is no memory. */
struct soft_qp *soft_new_qp(uint32_t max_send, uint32_t max_send_sge, uint32_t max_inline, uint32_t max_recv,
			    uint32_t max_recv_sge, uint64_t send_ops);
void soft_free_qp(struct soft_qp *qp);
struct soft_cq *soft_new_cq(uint32_t entries, uint64_t wc_flags, int extended);
void soft_free_cq(struct soft_cq *cq);
struct soft_srq *soft_new_srq(uint32_t max, uint32_t max_sge);
void soft_free_srq(struct soft_srq *srq);

/* Lists a queue, so that events can name it; sets its id. */
int soft_list_cq(struct soft_cq *cq);
/* Takes a queue off the list. Then it waits, if it is to, until every event that
 * ibv_get_cq_event returned for it has been acknowledged. */
void soft_retire_cq(struct soft_cq *cq, int wait);

/* Blocks threads that post or poll. */
void soft_lock_qp(struct soft_qp *qp);
void soft_unlock_qp(struct soft_qp *qp);
void soft_lock_srq(struct soft_srq *srq);
void soft_unlock_srq(struct soft_srq *srq);
void soft_lock_cq(struct soft_cq *cq);
void soft_unlock_cq(struct soft_cq *cq);

/* The doorbell. Threads that post ring it, and package node's worker hears it.
 * Go's node.Doorbell says what the fields mean. */
struct soft_bell {
	struct soft_wq *rung; /* linked by next */
	uint32_t own;
	uint32_t arms;
	uint32_t dozing;
};
struct soft_bell *soft_bell(void);

/* Makes word the bell's. A thread that finds it asleep writes to event, an eventfd,
 * or if that is -1 wakes the worker by the futex. */
void soft_set_word(uint32_t *word, int event);

/* Makes threads of C programs that poll in vain help the node. */
void soft_help_programs(void);
