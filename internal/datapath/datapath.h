#pragma once

#include <stdint.h>

/* Objects are passed as bytes: cgo checks pointers to anything that may itself
 * hold pointers at every call, and these are C's own. */

/* How a post ended. Go has the same structs, and clears them: what ended well
 * writes nothing. */
struct verbena_posted {
	int64_t value; /* what C returned, 0 for success */
	int32_t error; /* errno */
	int32_t none;  /* not even the requests before bad were posted */
	uint8_t *bad;  /* the request that failed, NULL if C does not say */
};

/* How polling ended. */
struct verbena_polled {
	int64_t value;	/* completions, or C's own failure */
	int32_t error;	/* errno */
	int32_t step;	/* what failed */
	int64_t now;	/* the clock, in nanoseconds, when it was last looked at; 0 if it was not */
	int64_t events; /* of this queue that were taken off the channel */
	uint8_t *other; /* the queue that an event was for, if not this one; NULL: none */
};
#define VERBENA_POLLING 0
#define VERBENA_ARMING 1  /* ibv_req_notify_cq */
#define VERBENA_READING 2 /* ibv_get_cq_event */

/* How an exchange ended. What comes after a failure was not tried. */
struct verbena_exchanged {
	struct verbena_posted received;
	struct verbena_posted sent;
	struct verbena_polled polled;
};

/* What fields may have beside IBV_WC_EX_WITH_*. Each field has a reader. */
#define VERBENA_EXTENDED (UINT64_C(1) << 63) /* with start_poll, not ibv_poll_cq */
#define VERBENA_ONE_BY_ONE (UINT64_C(1) << 62) /* next_poll cannot be relied upon */
#define VERBENA_OPCODE (UINT64_C(1) << 61)
#define VERBENA_WC_FLAGS (UINT64_C(1) << 60)

/* Results come through a pointer, of bytes too, because cgo takes as long for one
 * that is returned as for the arguments.
 *
 * ops are the IBV_QP_EX_WITH_* of a queue pair that was made with any; qp is
 * then a struct ibv_qp_ex. */
void verbena_post_send(uint8_t *qp, uint64_t ops, uint8_t *wr, uint8_t *posted);
void verbena_post_recv(uint8_t *qp, uint8_t *wr, uint8_t *posted);

/* out is an array of struct verbena_wc. */
#define VERBENA_WC_SIZE 88
void verbena_poll(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, uint8_t *polled);
void verbena_poll_or_arm(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int32_t solicited, uint8_t *polled);
void verbena_sleep(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int32_t solicited, int64_t budget,
		   uint8_t *polled);
void verbena_spin(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int64_t budget, uint8_t *polled);

/* Posts receives, then requests, either of which may be NULL, and spins or sleeps
 * until there are at least so many completions. ex is qp, or its struct
 * ibv_qp_ex. */
void verbena_exchange(uint8_t *qp, uint8_t *receives, uint8_t *ex, uint64_t ops, uint8_t *requests, uint8_t *cq,
		      uint64_t fields, int64_t least, int64_t max, uint8_t *out, int32_t how, int64_t budget,
		      uint8_t *exchanged);
#define VERBENA_SPIN 0
#define VERBENA_SLEEP 1
#define VERBENA_SLEEP_SOLICITED 2

/* Whether the provider that a function is in is Soft-RoCE's. */
int32_t verbena_is_rxe(uint8_t *function);
