// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "ring.h"

/* Tells the engine that a queue has requests. */
void soft_ring_bell(struct soft_wq *q);

/* Tells the worker that the program has armed a queue: it does not poll the queue any more,
 * but waits for its event. */
void soft_armed(void);

/* Tell Go's race detector, in programs that are built with -race, or the check of memory that this
 * thread posts the requests of a queue up to the number end, which are not visible to the device
 * yet, and that it polls a completion. */
void soft_tell_posted(struct soft_wq *q, uint32_t end);
void soft_tell_completed(const struct soft_wc *wc);

void soft_set_wr_ops(struct ibv_qp_ex *ex, uint64_t ops);
void soft_set_readers(struct ibv_cq_ex *ex, uint64_t wc_flags);
