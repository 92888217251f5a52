// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#define _GNU_SOURCE
#include "bell.h"
#include "call.h"
#include "check.h"
#include "verbs_skeleton.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Values of the word, as in package link. */
#define RUNG 1
#define ASLEEP 2
#define ATTENDED 3

int soft_forked;

static struct soft_bell bell;
static uint32_t *word = &bell.own;
static int event = -1, wait_event = -1;

struct soft_bell *soft_bell(void)
{
	return &bell;
}

void soft_set_word(uint32_t *w, int asleep, int attended)
{
	word = w;
	event = asleep;
	wait_event = attended;
}

static void forked(void)
{
	soft_forked = 1;
	word = &bell.own; /* the parent process, which has the device, must not see requests of this process */
	bell.dozing = 0; /* nor may soft_armed write to a descriptor that is no longer the eventfd here */
}

int soft_watch_fork(void)
{
	static int watches;

	return __atomic_exchange_n(&watches, 1, __ATOMIC_RELAXED) ? 0 : pthread_atfork(NULL, NULL, forked);
}

/* Adds to an eventfd. The calls do not block, so no signal interrupts them. Nor can the thread, which may
 * hold mutexes, be cancelled in them, as in write and read. */
static void wake(int event)
{
	uint64_t one = 1, count;
	int saved = errno;

	if (syscall(SYS_write, event, &one, sizeof(one)) < 0 && errno == EAGAIN && /* another process has filled the counter */
	    syscall(SYS_read, event, &count, sizeof(count)) > 0)
		syscall(SYS_write, event, &one, sizeof(one));
	errno = saved;
}

void soft_ring_bell(struct soft_wq *q)
{
	/* If the queue is already on the list, the device will see its requests: package node
	 * clears rung before the engine loads posted. */
	if (__atomic_exchange_n(&q->rung, 1, __ATOMIC_SEQ_CST))
		return;
	q->next = __atomic_load_n(&bell.rung, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&bell.rung, &q->next, q, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
	if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == RUNG)
		return;
	switch (__atomic_exchange_n(word, RUNG, __ATOMIC_SEQ_CST)) {
	case ASLEEP:
		wake(event);
		break;
	case ATTENDED:
		wake(wait_event);
		break;
	}
}

void soft_tell_posted(struct soft_wq *q, uint32_t end)
{
	struct {
		struct soft_wq *queue;
		uint32_t end;
	} args = {q, end};

	if (!bell.tells || q->posted == end)
		return;
	if (bell.tells == SOFT_TELLS_CHECK)
		soft_check_posted(q, end);
	else
		soft_void(SOFT_DETECTOR, 0, &args);
}

void soft_tell_completed(const struct soft_wc *wc)
{
	uint32_t ticket = wc->ticket;

	if (!ticket)
		return;
	if (bell.tells == SOFT_TELLS_CHECK)
		soft_check_completed(wc);
	else
		soft_void(SOFT_DETECTOR, 1, &ticket);
}

void soft_armed(void)
{
	__atomic_add_fetch(&bell.arms, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&bell.dozing, __ATOMIC_SEQ_CST))
		wake(event);
}
