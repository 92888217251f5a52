// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#define _GNU_SOURCE
#include "bell.h"
#include "verbs_skeleton.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Values of the word, as in package link. */
#define RUNG 1
#define ASLEEP 2

int soft_forked;

static struct soft_wq *rung;
static uint32_t own; /* of this process alone */
static uint32_t *word = &own;
static int event = -1;
static uint32_t arms, dozing;

struct soft_wq **soft_rung(void)
{
	return &rung;
}

uint32_t *soft_word(void)
{
	return word;
}

void soft_set_word(uint32_t *w)
{
	word = w;
}

void soft_set_event(int fd)
{
	event = fd;
}

static void forked(void)
{
	soft_forked = 1;
	word = &own; /* whose requests the process that has the device must not see */
}

int soft_watch_fork(void)
{
	return pthread_atfork(NULL, NULL, forked);
}

void soft_ring_bell(struct soft_wq *q)
{
	/* The engine clears rung before it looks at posted, so a queue that is on the list
	 * already needs nothing more. */
	if (__atomic_exchange_n(&q->rung, 1, __ATOMIC_SEQ_CST))
		return;
	q->next = __atomic_load_n(&rung, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&rung, &q->next, q, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
	if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == RUNG || __atomic_exchange_n(word, RUNG, __ATOMIC_SEQ_CST) != ASLEEP)
		return;
	if (event < 0) {
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	} else {
		uint64_t one = 1;

		while (write(event, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
}

uint32_t soft_arms(void)
{
	return __atomic_load_n(&arms, __ATOMIC_SEQ_CST);
}

void soft_armed(void)
{
	__atomic_add_fetch(&arms, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&dozing, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &arms, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void soft_doze(uint32_t seen, uint32_t us)
{
	struct timespec t = {.tv_nsec = us * 1000L};

	__atomic_store_n(&dozing, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &arms, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
	__atomic_store_n(&dozing, 0, __ATOMIC_SEQ_CST);
}
