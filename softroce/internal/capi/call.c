// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include "call.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "c.h"
#include "faults.h"

/* The result of a Go function: a pointer (r0), a value (r1) and an errno (r2). */
typedef struct soft_go_call_return soft_answer;

/* Signal handlers run on the alternate signal stack. If a handler calls Go, Go's system stack is there,
 * too, for which Go assumes 32 KiB: as much as the alternate stack that Go would give the thread. */
#define SIGNAL_STACK (256 << 10)
#define ENOUGH (64 << 10)

int soft_for_c;

/* The number of Go functions that this thread is in, or HANDLER. */
static __thread int inside;
#define HANDLER -1

/* The cancellation state that this thread had before it called Go. The thread cannot be cancelled in Go,
 * as Go calls C's cancellation points, and a thread that ended there would keep Go's locks. */
static __thread int cancelable;

/* The alternate signal stack of this thread, if known is true and the thread has one. */
static __thread struct {
	uintptr_t start;
	size_t size;
	int known;
} handlers;

static pthread_key_t own_stack;

/* Frees the signal stack of a thread that ends. The first time, it only asks to be called again: Go's
 * runtime relies on the stack until its own destructor has run. */
static void free_stack(void *stack)
{
	static __thread int called;
	stack_t none = {.ss_flags = SS_DISABLE}, now;

	if (!called++) {
		pthread_setspecific(own_stack, stack);
		return;
	}
	handlers.size = 0;
	if (sigaltstack(NULL, &now) == 0 && now.ss_sp == stack && sigaltstack(&none, NULL))
		return; /* the thread ends in a signal handler */
	munmap(stack, SIGNAL_STACK);
}

/* Finds the alternate signal stack of this thread, and gives it one if it has none. Without memory for
 * that, it gets Go's. */
static void know_handlers(void)
{
	stack_t now, own = {.ss_size = SIGNAL_STACK};

	handlers.known = 1;
	if (sigaltstack(NULL, &now))
		return;
	if (now.ss_flags & SS_DISABLE) {
		own.ss_sp = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (own.ss_sp == MAP_FAILED)
			return;
		if (pthread_setspecific(own_stack, own.ss_sp) || sigaltstack(&own, NULL)) {
			pthread_setspecific(own_stack, NULL);
			munmap(own.ss_sp, SIGNAL_STACK);
			return;
		}
		now = own;
	}
	handlers.start = (uintptr_t)now.ss_sp;
	handlers.size = now.ss_size;
}

/* Makes a cancellation of this thread wait until it has left Go. */
static void keep_thread(void)
{
	if (soft_for_c)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelable);
}

/* Precedes each call of Go, and leave follows it. enter returns 0, or an errno if the thread must not
 * call Go. The mask is for leave. */
static int enter(sigset_t *mask)
{
	sigset_t asynchronous;

	if (soft_forked)
		return ENODEV; /* a forked child lacks Go's threads */
	if (soft_for_c && !handlers.known)
		know_handlers();
	if ((uintptr_t)__builtin_frame_address(0) - handlers.start >= handlers.size) {
		if (!inside++)
			keep_thread();
		return 0;
	}
	/* The caller is a signal handler. Go's runtime ends the process if the handler has interrupted a
	 * call of Go. C's libraries might wait for that call forever. */
	if (inside || handlers.size < ENOUGH)
		return EDEADLK;
	/* While Go runs on a stack of its own, another signal's handler would overwrite this one's. */
	soft_all_but_faults(&asynchronous);
	pthread_sigmask(SIG_BLOCK, &asynchronous, mask);
	keep_thread();
	inside = HANDLER;
	return 0;
}

static void leave(const sigset_t *mask)
{
	/* No signal handler can enter yet. It would store another state in cancelable. */
	if ((inside == HANDLER || inside == 1) && soft_for_c)
		pthread_setcancelstate(cancelable, NULL);
	if (inside == HANDLER)
		pthread_sigmask(SIG_SETMASK, mask, NULL);
	inside = inside == HANDLER ? 0 : inside - 1;
}

void soft_start(void)
{
	sigset_t mask;

	if (pthread_key_create(&own_stack, free_stack))
		handlers.known = 1;
	soft_for_c = 1;
	soft_watch_fork(); /* some functions call Go without making the node */
	enter(&mask);
	soft_go_ready();
	leave(&mask);
}

static soft_answer soft_call(int library, int function, void *args)
{
	sigset_t mask;
	int e = enter(&mask);
	soft_answer r = {.r2 = e};

	if (e)
		return r;
	r = soft_go_call(library, function, args);
	leave(&mask);
	return r;
}

void soft_help(void *cq)
{
	sigset_t mask;

	if (enter(&mask))
		return;
	soft_go_help(cq);
	leave(&mask);
}

void soft_void(int library, int function, void *args)
{
	soft_call(library, function, args);
}

int64_t soft_value(int library, int function, void *args)
{
	return soft_call(library, function, args).r1;
}

int soft_code(int library, int function, void *args)
{
	return soft_call(library, function, args).r2;
}

int soft_status(int library, int function, void *args)
{
	soft_answer r = soft_call(library, function, args);

	if (r.r2)
		errno = r.r2;
	return r.r2 ? -1 : 0;
}

/* What a thread has read from a semaphore when it is cancelled. */
struct token {
	int semaphore;
	uint64_t number;
};

static void give_back(void *t)
{
	struct token *token = t;

	if (token->number)
		(void)!write(token->semaphore, &token->number, sizeof(token->number));
}

/* Waits for a semaphore. The thread waits in C, where it can be cancelled. */
static int take(int semaphore)
{
	struct token token = {semaphore, 0};
	ssize_t n;

	pthread_cleanup_push(give_back, &token);
	n = read(semaphore, &token.number, sizeof(token.number));
	pthread_cleanup_pop(0);
	return n < 0 ? errno : 0;
}

int soft_event(int library, int function, void *object, const int *fd, void *out)
{
	struct { void *object, *out; } args = {object, NULL}, known = args;
	int semaphore, e = soft_code(library, function, &known);
	sem_t never;

	if (e)
		return errno = e, -1;
	args.out = out;
	semaphore = *fd;
	do {
		e = take(semaphore);
		if (e && (e != EBADF || !soft_code(library, function, &known)))
			return errno = e, -1;
		if (!e)
			e = soft_code(library, function, &args);
	} while (e == EAGAIN);
	if (e == EBADF) {
		/* The object was destroyed meanwhile. As in the kernel, only a signal ends the call. */
		sem_init(&never, 0, 0);
		return sem_wait(&never);
	}
	if (e)
		errno = e;
	return e ? -1 : 0;
}

int64_t soft_count(int library, int function, void *args)
{
	soft_answer r = soft_call(library, function, args);

	if (r.r2)
		errno = r.r2;
	return r.r2 ? -1 : r.r1;
}

int64_t soft_negative(int library, int function, void *args)
{
	soft_answer r = soft_call(library, function, args);

	return r.r2 ? -r.r2 : r.r1;
}

int64_t soft_wait(int library, int function, void *args)
{
	soft_answer r = soft_call(library, function, args);

	return r.r2 ? r.r2 : r.r1;
}

void *soft_pointer(int library, int function, void *args)
{
	soft_answer r = soft_call(library, function, args);

	if (!r.r0)
		errno = r.r2;
	return r.r0;
}

int soft_rereg(int library, int function, void *args)
{
	soft_answer r = soft_call(library, function, args);

	if (r.r2 == ENODEV || r.r2 == EDEADLK)
		r.r1 = -1;
	if (r.r1)
		errno = r.r2;
	return r.r1;
}
