// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdint.h>

enum verbena_op {
	OP_POST_SEND = 1, OP_POST_RECV, OP_START, OP_COMPLETE, OP_ABORT,
	OP_SEND, OP_SEND_IMM, OP_SEND_INV, OP_SEND_TSO, OP_WRITE, OP_WRITE_IMM, OP_READ,
	OP_CMP_SWP, OP_FETCH_ADD, OP_BIND_MW, OP_LOCAL_INV, OP_FLUSH, OP_ATOMIC_WRITE,
	OP_SGE, OP_SGE_LIST, OP_INLINE, OP_UD_ADDR, OP_XRC_SRQN,
};

typedef struct {
	uint32_t op;
	uint32_t flags;
	uint64_t id;
	uint64_t args[6];
} verbena_call;

#define VERBENA_CALLS 256

typedef struct {
	/* Plan: what the operations do. */
	int64_t completions; /* number of completions that polls return */
	int64_t empty_polls; /* number of empty polls before the first completion */
	int64_t on_arming;   /* number of completions that arrive when the queue is armed */
	int64_t fail_at;     /* index of the request in a list that cannot be posted; -1: none */
	int32_t post_error;  /* result of posting that request, and of wr_complete */
	int32_t poll_error;  /* result of polling, unless it is 0 */
	int32_t arm_error;
	uint32_t status; /* status of completions */
	uint32_t wc_flags;
	int32_t record;

	/* Record: what the operations were called for. */
	int64_t requests; /* number of posted requests */
	int64_t polls;
	int64_t armed;
	int64_t ended; /* calls of end_poll minus successful calls of start_poll */
	uint64_t next_id;
	int32_t ncalls;
	verbena_call calls[VERBENA_CALLS];
} verbena_state;

void *verbena_fake_new(void);
void verbena_fake_free(void *fake);
void *verbena_fake_qp(void *fake);
void *verbena_fake_cq(void *fake);
verbena_state *verbena_fake_state(void *fake);

void verbena_fake_echo(void *context);
