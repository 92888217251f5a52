// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#include "call.h"

#include <errno.h>
#include <signal.h>

#include "_cgo_export.h"
#include "c.h"

/* The result of a Go function: a pointer (r0), a value (r1) and an errno (r2). */
typedef struct soft_go_call_return soft_answer;

/* The number of Go functions that this thread is in. */
static __thread int inside;

/* Reports whether a signal handler that has interrupted a call of Go is the caller. Go's runtime ends
 * the process if the handler calls Go, too. Handlers run on the alternate signal stack. */
static int interrupts_go(void)
{
	stack_t stack;

	return inside && sigaltstack(NULL, &stack) == 0 && stack.ss_flags & SS_ONSTACK;
}

/* Calls Go, unless this is a forked child, which lacks Go's threads, or a signal handler that has
 * interrupted such a call. With C's libraries, its call may wait for the interrupted one forever. */
static soft_answer soft_call(int library, int function, void *args)
{
	soft_answer r;

	if (soft_forked)
		return (soft_answer){.r2 = ENODEV};
	if (interrupts_go())
		return (soft_answer){.r2 = EDEADLK};
	inside++;
	r = soft_go_call(library, function, args);
	inside--;
	return r;
}

void soft_help(void *cq)
{
	if (soft_forked || interrupts_go())
		return;
	inside++;
	soft_go_help(cq);
	inside--;
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

	if (soft_forked)
		r.r1 = -1;
	if (r.r1)
		errno = r.r2;
	return r.r1;
}
