// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "verbs_skeleton.h"

/* The rings that package engine shares with C; it has the same structs and says what they
 * mean. Fields that both sides use at the same time are accessed atomically. */

struct soft_wq {
	uint32_t posted;
	uint32_t freed;
	uint32_t state;
	uint32_t size;
	uint32_t max;
	uint32_t stride;
	uint32_t max_sge;
	uint32_t max_inline;
	uint8_t *slots;
	uint64_t owner;
	struct soft_wq *next;
	uint32_t rung;
	uint32_t reserved;
};
_Static_assert(sizeof(struct soft_wq) == 64 && offsetof(struct soft_wq, slots) == 32, "struct soft_wq");

struct soft_send {
	uint64_t id;
	uint32_t opcode;
	uint32_t flags;
	uint32_t imm;
	uint32_t num_sge;
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t inline_len;
	uint64_t compare_add;
	uint64_t swap;
	uint64_t ah;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	uint32_t bind_lkey;
	uint32_t bind_access;
	uint64_t reserved;
	struct ibv_sge sges[]; /* or bytes */
};
_Static_assert(sizeof(struct soft_send) == 88, "struct soft_send");

struct soft_recv {
	uint64_t id;
	uint32_t num_sge;
	uint32_t reserved;
	struct ibv_sge sges[];
};
_Static_assert(sizeof(struct soft_recv) == 16, "struct soft_recv");

struct soft_ring {
	uint32_t added;
	uint32_t polled;
	uint32_t size;
	uint32_t max;
	uint32_t armed;
	uint32_t overrun;
	struct soft_wc *entries;
};
#define SOFT_ARMED_NEXT 1
#define SOFT_ARMED_SOLICITED 2

struct soft_wc {
	struct ibv_wc wc;
	uint64_t timestamp;
	uint64_t wallclock;
	struct soft_wq *queue;
	uint32_t count;
	uint32_t reserved;
};
_Static_assert(sizeof(struct soft_wc) == 80, "struct soft_wc");

/* The objects that programs get. Each begins with what the headers show. */

struct soft_qp {
	struct ibv_qp_ex ex; /* begins with struct ibv_qp */
	struct soft_wq send;
	struct soft_wq recv; /* not used with a shared receive queue */
	pthread_mutex_t send_lock;
	pthread_mutex_t recv_lock;

	int extended; /* made with ibv_create_qp_ex and send_ops_flags */

	/* Requests between wr_start and wr_complete. */
	uint32_t building;
	int error;
	struct soft_send *current;
};

struct soft_cq {
	struct ibv_cq_ex ex; /* begins with the fields of struct ibv_cq */
	struct soft_ring ring;
	pthread_mutex_t lock;
	struct soft_wc *current; /* between start_poll and end_poll */
	uint32_t empty;		 /* polls in vain since it had a completion or was armed */
	uint64_t id;		 /* in the table of queues */
	uint32_t given;		 /* events that ibv_get_cq_event returned */
};

struct soft_srq {
	struct ibv_srq srq;
	struct soft_wq queue;
	pthread_mutex_t lock;
};

struct soft_mw {
	struct ibv_mw mw;
	uint64_t id;
};

struct soft_ah {
	struct ibv_ah ah;
	uint64_t id;
};

/* How many places a ring has of which max may be used: a power of two, and one more at least,
 * for a request that is built and never posted. */
uint32_t soft_places(uint32_t max);

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

/* Makes soft_forked true in children that this process forks, also those of C's. */
int soft_watch_fork(void);
