// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "c.h"
#include "verbs_skeleton.h"

/* The rings that package engine shares with C. engine/ring.go has the same structs, and
 * explains their fields. Fields that both sides use at the same time are accessed
 * atomically. */

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
	uint32_t check;
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
	uint32_t ticket;
	uint32_t reserved;
	struct ibv_sge sges[]; /* or inline_len bytes of inline data */
};
_Static_assert(sizeof(struct soft_send) == 88, "struct soft_send");

struct soft_recv {
	uint64_t id;
	uint32_t num_sge;
	uint32_t ticket;
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
#define SOFT_ARMED_EVENT 4
#define SOFT_ARMED_WAKE 8

struct soft_wc {
	struct ibv_wc wc;
	uint64_t timestamp;
	uint64_t wallclock;
	struct soft_wq *queue;
	uint32_t count;
	uint32_t ticket;
	uint32_t tag_context;
	uint32_t reserved;
	uint64_t tag;
};
_Static_assert(sizeof(struct soft_wc) == 96, "struct soft_wc");

/* The objects that programs get. Each begins with the struct that libibverbs' headers
 * declare. The fields that follow are also in the Go structs softQP, softCQ and so on. */

struct soft_qp {
	struct ibv_qp_ex ex; /* begins with struct ibv_qp */
	struct soft_wq send;
	struct soft_wq recv; /* not used with a shared receive queue */
	const struct soft_allocator *send_from; /* has the slots of the queue; NULL: C's allocator has */
	const struct soft_allocator *recv_from;
	pthread_mutex_t send_lock;
	pthread_mutex_t recv_lock;

	int extended;		/* whether ibv_create_qp_ex made it, with send_ops_flags */
	uint32_t lacks;		/* mask of the opcodes that the device does not have */
	uint32_t max_read_sge;	/* segments of an RDMA read */
	int refuses_late;	/* whether nothing can be posted in the error state */

	/* The requests that are being built, between wr_start and wr_complete: the number of the
	 * next one, the first error, and the slot of the newest one. */
	uint32_t building;
	int error;
	struct soft_send *current;
};
_Static_assert(offsetof(struct soft_qp, send) == sizeof(struct ibv_qp_ex), "struct soft_qp");

struct soft_cq {
	struct ibv_cq_ex ex; /* begins with the fields of struct ibv_cq */
	struct soft_ring ring;
	uint64_t id;		 /* index in the table of queues, and its uses (see poll.c) */
	uint32_t empty;		 /* number of empty polls since the queue had a completion or was armed */
	uint32_t own;		 /* whether Go polls the queue, in calls of C that must not call Go */
	uint32_t given;		 /* number of events that ibv_get_cq_event returned */
	uint32_t released;	 /* whether soft_retire_cq does not wait any longer */
	const struct soft_allocator *from; /* has the entries of the ring; NULL: C's allocator has */
	pthread_mutex_t lock;
	struct soft_wc *current; /* completion that is being polled, between start_poll and end_poll */
	int unsolicited;	 /* whether the queue cannot be armed for solicited completions only */
};
_Static_assert(offsetof(struct soft_cq, ring) == sizeof(struct ibv_cq_ex) && offsetof(struct soft_cq, id) == offsetof(struct soft_cq, ring) + 32, "struct soft_cq");

struct soft_srq {
	struct ibv_srq srq;
	struct soft_wq queue;
	struct soft_wq ops; /* counts operations on the tag list; it has no slots */
	const struct soft_allocator *from; /* has the slots of the queue; NULL: C's allocator has */
	pthread_mutex_t lock;
};
_Static_assert(offsetof(struct soft_srq, queue) == sizeof(struct ibv_srq), "struct soft_srq");

/* Device memory, which is Go's and pinned. */
struct soft_dm {
	struct ibv_dm dm;
	uint8_t *memory;
	uint64_t length;
};

struct soft_mw {
	struct ibv_mw mw;
	uint64_t id;
};

struct soft_ah {
	struct ibv_ah ah;
	uint64_t id;
};
