// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE

#include "pass.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* Programs that are linked to this library call its sigaction, signal and so on instead of libc's.
 * There are two reasons.
 *
 * While a thread of C is in Go code, it uses a stack of Go's, on which there may be no room for a
 * signal handler. So each handler runs on the alternate signal stack, which the device sets up for
 * threads that call it.
 *
 * If the program has unmapped memory of a region, the device's access to that memory is a fault, from
 * which Go's handler makes an error of the request. So the program's handlers of faults must not
 * replace Go's. The kernel calls handle_fault, which calls Go's handler. If the fault was not in Go's
 * code, Go's handler calls the handler that was set when Go was loaded. That is run_program_handler,
 * which calls the handler that the program has requested. */

static const int faults[] = {SIGSEGV, SIGBUS};

#define FAULTS (sizeof(faults) / sizeof(faults[0]))

static struct sigaction requested[FAULTS]; /* actions that the program has requested */
static struct sigaction go_actions[FAULTS];
static int emulating;		   /* whether requested, and not the kernel, has the program's actions */
static uintptr_t code, code_end; /* range of the device's code; 0 until the device is loaded */

static int libc_sigaction(int sig, const struct sigaction *action, struct sigaction *old)
{
	static int (*libc)(int, const struct sigaction *, struct sigaction *);

	if (!libc)
		libc = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	if (!libc) /* in a program that is linked only to librdmacm, libc comes before this library */
		libc = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_DEFAULT, "sigaction");
	return libc(sig, action, old);
}

static int locked;

/* Locks requested. It blocks signals until unlock, as a signal handler may call sigaction. */
static void lock(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, before);
	while (__atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void unlock(const sigset_t *before)
{
	__atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* Returns the index of a signal in faults, or -1. */
static int place(int sig)
{
	for (size_t i = 0; i < FAULTS; i++) {
		if (faults[i] == sig)
			return i;
	}
	return -1;
}

/* Returns the action that the program has requested. If action is not NULL, action replaces it. */
static struct sigaction swap_requested(int i, const struct sigaction *action)
{
	struct sigaction old;
	sigset_t before;

	lock(&before);
	old = requested[i];
	if (action)
		requested[i] = *action;
	unlock(&before);
	return old;
}

static void run_program_handler(int sig, siginfo_t *info, void *context)
{
	struct sigaction a = swap_requested(place(sig), NULL), dfl = {.sa_handler = SIG_DFL};
	int sent = info->si_code <= 0, simple = !(a.sa_flags & SA_SIGINFO);
	sigset_t mask, before;

	if (simple && a.sa_handler == SIG_IGN && sent)
		return;
	if (simple && (a.sa_handler == SIG_DFL || a.sa_handler == SIG_IGN)) {
		libc_sigaction(sig, &dfl, NULL);
		syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), sig, info);
		return; /* the signal that was just sent ends the process */
	}
	if (a.sa_flags & SA_RESETHAND)
		swap_requested(place(sig), &dfl);
	sigorset(&mask, &((ucontext_t *)context)->uc_sigmask, &a.sa_mask);
	if (!(a.sa_flags & SA_NODEFER))
		sigaddset(&mask, sig);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	if (simple)
		a.sa_handler(sig);
	else
		a.sa_sigaction(sig, info, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void handle_fault(int sig, siginfo_t *info, void *context)
{
	if (info->si_code > 0)
		go_actions[place(sig)].sa_sigaction(sig, info, context);
	else
		run_program_handler(sig, info, context); /* a thread or process has sent the signal: it is no fault */
}

static struct sigaction handled_by(void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

	sigfillset(&a.sa_mask);
	return a;
}

void soft_keep_faults(void)
{
	struct sigaction a = handled_by(run_program_handler);
	sigset_t before;

	lock(&before);
	for (size_t i = 0; i < FAULTS; i++)
		libc_sigaction(faults[i], &a, &requested[i]);
	__atomic_store_n(&emulating, 1, __ATOMIC_RELEASE);
	unlock(&before);
}

void soft_return_faults(void)
{
	sigset_t before;

	lock(&before);
	__atomic_store_n(&emulating, 0, __ATOMIC_RELEASE);
	for (size_t i = 0; i < FAULTS; i++)
		libc_sigaction(faults[i], &requested[i], NULL);
	unlock(&before);
}

/* Sets code and code_end to the range of the library that contains function. */
static int find_code(struct dl_phdr_info *info, size_t size, void *function)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_LOAD && (uintptr_t)function - start < p->p_memsz) {
			code = start;
			__atomic_store_n(&code_end, start + p->p_memsz, __ATOMIC_RELEASE);
			return 1;
		}
	}
	return 0;
}

void soft_share_faults(void *function)
{
	struct sigaction a = handled_by(handle_fault);

	dl_iterate_phdr(find_code, function);
	for (size_t i = 0; i < FAULTS; i++) {
		libc_sigaction(faults[i], NULL, &go_actions[i]);
		libc_sigaction(faults[i], &a, NULL);
	}
}

/* Reports whether the caller is Go's runtime. */
static int from_go(void *caller)
{
	uintptr_t end = __atomic_load_n(&code_end, __ATOMIC_ACQUIRE);
	Dl_info info;

	if (end)
		return (uintptr_t)caller >= code && (uintptr_t)caller < end;
	return dladdr(caller, &info) && soft_is_device(info.dli_fname);
}

static int set(int sig, const struct sigaction *action, struct sigaction *old, void *caller)
{
	int i = place(sig);
	struct sigaction a;

	if (i >= 0 && __atomic_load_n(&emulating, __ATOMIC_ACQUIRE) && !from_go(caller)) {
		a = swap_requested(i, action);
		if (old)
			*old = a;
		return 0;
	}
	if (!action || (!(action->sa_flags & SA_SIGINFO) && (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN)))
		return libc_sigaction(sig, action, old);
	a = *action;
	a.sa_flags |= SA_ONSTACK;
	return libc_sigaction(sig, &a, old);
}

static sighandler_t set_simple(int sig, sighandler_t handler, int flags, void *caller)
{
	struct sigaction a = {.sa_handler = handler, .sa_flags = flags}, old;

	return set(sig, &a, &old, caller) ? SIG_ERR : old.sa_handler;
}

#pragma GCC visibility push(default)

int sigaction(int sig, const struct sigaction *restrict action, struct sigaction *restrict old)
{
	return set(sig, action, old, __builtin_return_address(0));
}

sighandler_t signal(int sig, sighandler_t handler)
{
	return set_simple(sig, handler, SA_RESTART, __builtin_return_address(0));
}

sighandler_t bsd_signal(int sig, sighandler_t handler)
{
	return set_simple(sig, handler, SA_RESTART, __builtin_return_address(0));
}

/* In a program that is compiled for standard C or POSIX only, signal stands for this function. */
sighandler_t __sysv_signal(int sig, sighandler_t handler)
{
	return set_simple(sig, handler, SA_RESETHAND | SA_NODEFER, __builtin_return_address(0));
}

sighandler_t sysv_signal(int sig, sighandler_t handler)
{
	return set_simple(sig, handler, SA_RESETHAND | SA_NODEFER, __builtin_return_address(0));
}
