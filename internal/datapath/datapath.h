// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdint.h>

/* Objects are passed as pointers to bytes: at every call, cgo checks pointers to
 * anything that may hold pointers, and these belong to C. */

/* Result of posting. Go has the same structs, and clears them, because a success
 * writes nothing. */
struct verbena_posted {
	int64_t value; /* what C returned; 0: success */
	int32_t error; /* errno */
	int32_t none;  /* if not 0, the requests before bad were not posted either */
	uint8_t *bad;  /* request that failed; NULL if C does not say */
};

/* Result of polling. */
struct verbena_polled {
	int64_t value;	/* number of completions, or C's failure */
	int32_t error;	/* errno */
	int32_t step;	/* the step that failed */
	int64_t now;	/* last reading of the clock in nanoseconds; 0: none */
	int64_t events; /* events of this queue that were taken off the channel */
	uint8_t *other; /* queue of an event for another queue; NULL: none */
};
#define VERBENA_POLLING 0
#define VERBENA_ARMING 1  /* ibv_req_notify_cq */
#define VERBENA_READING 2 /* ibv_get_cq_event */

/* Result of an exchange. Steps after one that failed were not tried. */
struct verbena_exchanged {
	struct verbena_posted received;
	struct verbena_posted sent;
	struct verbena_polled polled;
};

/* Bits of the parameter fields, in addition to IBV_WC_EX_WITH_*. The provider has a
 * function to read each field in it. */
#define VERBENA_EXTENDED (UINT64_C(1) << 63) /* poll with start_poll, not ibv_poll_cq */
#define VERBENA_ONE_BY_ONE (UINT64_C(1) << 62) /* next_poll is unreliable */
#define VERBENA_OPCODE (UINT64_C(1) << 61)
#define VERBENA_WC_FLAGS (UINT64_C(1) << 60)

/* Results are written through a pointer to bytes, because cgo takes as long to
 * return a value as to pass the arguments.
 *
 * ops holds the IBV_QP_EX_WITH_* that the queue pair was made with. If it is not 0, qp
 * is a struct ibv_qp_ex. */
void verbena_post_send(uint8_t *qp, uint64_t ops, uint8_t *wr, uint8_t *posted);
void verbena_post_recv(uint8_t *qp, uint8_t *wr, uint8_t *posted);

/* out is an array of struct verbena_wc. */
#define VERBENA_WC_SIZE 88
void verbena_poll(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, uint8_t *polled);
void verbena_poll_or_arm(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int32_t solicited, uint8_t *polled);
/* Values of solicited with which a queue of a device in this process is armed for Go's
 * function that wakes a goroutine, in place of an event. */
#define VERBENA_WAKE 0x57414b45
#define VERBENA_WAKE_SOLICITED 0x57414b46
/* Sets ibv_get_cq_event (0) or ibv_ack_cq_events (1), without which sleeping fails. */
void verbena_set_event_function(int32_t i, void *function);
/* Takes an event off a channel, and acknowledges it. value and error are those of
 * ibv_get_cq_event; other is the event's queue. */
void verbena_take_event(uint8_t *channel, uint8_t *polled);
void verbena_sleep(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int32_t solicited, int64_t budget,
		   uint8_t *polled);
/* Sets the text that verbena_origin returns in this thread. */
void verbena_set_origin(uint8_t *text);
const char *verbena_origin(void);
/* Polls once and reads the clock. */
void verbena_look(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, uint8_t *polled);
void verbena_spin(uint8_t *cq, uint64_t fields, int64_t max, uint8_t *out, int64_t budget, uint8_t *polled);

/* Posts receives, then requests, and spins or sleeps until there are at least least
 * completions. Either list may be NULL. ex is qp or its struct ibv_qp_ex. */
void verbena_exchange(uint8_t *qp, uint8_t *receives, uint8_t *ex, uint64_t ops, uint8_t *requests, uint8_t *cq,
		      uint64_t fields, int64_t least, int64_t max, uint8_t *out, int32_t how, int64_t budget,
		      uint8_t *exchanged);
#define VERBENA_SPIN 0
#define VERBENA_SLEEP 1
#define VERBENA_SLEEP_SOLICITED 2

/* Reports whether a function belongs to Soft-RoCE's provider. */
int32_t verbena_is_rxe(uint8_t *function);
