// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "ring.h"

/* Begins the check of the memory of the requests of a queue up to the number end, which are not
 * visible to the device yet. */
void soft_check_posted(struct soft_wq *q, uint32_t end);

/* Ends the check of the memory of the request whose completion this thread polls, and of earlier
 * ones of its send queue. */
void soft_check_completed(const struct soft_wc *wc);
