// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdint.h>

/* Each function returns the nanoseconds that the rounds took, or -1 if something failed. */
int64_t verbena_loop_post(void *qp, void *wr, int64_t rounds);
int64_t verbena_loop_fill_and_post(void *qp, void *wr, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds);
int64_t verbena_loop_change_and_post(void *qp, void *wr, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds);
int64_t verbena_loop_fill_and_recv(void *qp, void *wr, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds);
int64_t verbena_loop_cycle(void *qp, void *wr, void *cq, void *wc, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds);
int64_t verbena_loop_send_extended(void *qp, int32_t n, uint64_t addr, uint32_t lkey, int64_t rounds);
int64_t verbena_loop_post_extended(void *qp, void *wr, int64_t rounds);
int64_t verbena_loop_poll(void *cq, void *wc, int32_t n, int64_t rounds);
int64_t verbena_loop_poll_extended(void *cq, int32_t n, int64_t rounds);
int64_t verbena_loop_post_and_poll(void *qp, void *wr, void *cq, void *wc, int32_t n, int64_t rounds);
void verbena_empty(void *nothing);

/* One end of a connection. */
typedef struct {
	void *qp;
	void *cq;      /* completion queue of receives; sends is that of sends */
	void *sends;
	void *channel; /* completion channel of cq */
	void *quiet;   /* a send that gives no completion */
	void *loud;    /* a send that gives a completion */
	void *recv;
} verbena_end;

/* Messages go from a to b and back, every 16th with a completion. The ends wait for
 * events if wait is not 0, and poll otherwise. */
void verbena_loop_event_function(int32_t i, void *f);
int64_t verbena_loop_pingpong(const verbena_end *a, const verbena_end *b, int32_t wait, int64_t rounds);

/* Posts a list, of which only the last request gives a completion, with at most
 * window lists in flight. */
int64_t verbena_loop_stream(void *qp, void *cq, void *list, int32_t window, int64_t rounds);
