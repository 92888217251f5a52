// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "ring.h"

/* Tells the engine that a queue has requests. */
void soft_ring_bell(struct soft_wq *q);

/* Tells the worker that the program has armed a queue: it does not poll the queue any more,
 * but waits for its event. */
void soft_armed(void);

void soft_set_wr_ops(struct ibv_qp_ex *ex, uint64_t ops);
void soft_set_readers(struct ibv_cq_ex *ex, uint64_t wc_flags);
