// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE

#include "../../capi/faults.h"
#include "pass.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The library that has the device. It is in the folder of this library. It is not loaded with the
 * program but at the first call of a function: what a program does before that, such as forking,
 * is not affected by Go's runtime. */
#define DEVICE "libverbena-softroce.so"

static char path[PATH_MAX];
static void *(*verbs)(const char *), *(*cm)(const char *);

/* Finds the path of DEVICE. It runs before the program can change its working directory, since
 * the path of this library may be relative. */
__attribute__((constructor)) static void locate(void)
{
	char own[PATH_MAX];
	Dl_info info;
	char *slash;

	if (!dladdr(locate, &info) || !realpath(info.dli_fname, own))
		return;
	slash = strrchr(own, '/');
	if (slash && slash - own + sizeof("/" DEVICE) <= sizeof(path))
		sprintf(path, "%.*s/" DEVICE, (int)(slash - own), own);
}

int soft_is_device(const char *other)
{
	return other && strcmp(other, path) == 0;
}

static int has_device;

int soft_has_device(void)
{
	return __atomic_load_n(&has_device, __ATOMIC_ACQUIRE);
}

static void forked(void)
{
	has_device = 0;
}

int soft_system_poll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	struct timespec t = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};

	return syscall(SYS_ppoll, fds, nfds, timeout < 0 ? NULL : &t, NULL, sizeof(uint64_t));
}

int soft_system_select(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout)
{
	struct timespec t = {0};

	if (timeout) {
		t.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
		t.tv_nsec = timeout->tv_usec % 1000000 * 1000;
	}
	return syscall(SYS_pselect6, nfds, readfds, writefds, exceptfds, timeout ? &t : NULL, NULL);
}

static void load(void)
{
	sigset_t asynchronous, before;
	void *device, (*start)(void);

	if (dlsym(RTLD_DEFAULT, "crosscall2")) {
		fprintf(stderr, "softroce: this is a Go program, and one process cannot have Go twice: "
				"import github.com/verbena-go/verbena/softroce and set VERBENA_DEVICE=soft\n");
		return;
	}
	/* The threads of Go's runtime inherit the signal mask. They must leave signals to the program's
	 * own threads, except those that Go's runtime sends to itself, and faults. */
	soft_all_but_faults(&asynchronous);
	sigdelset(&asynchronous, SIGPROF);
	sigdelset(&asynchronous, SIGURG);
	soft_keep_faults();
	pthread_sigmask(SIG_BLOCK, &asynchronous, &before);
	device = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!device) {
		soft_return_faults();
		fprintf(stderr, "softroce: %s\n", dlerror());
		return;
	}
	*(void **)&start = dlsym(device, "soft_start");
	start();
	soft_share_faults(start);
	verbs = dlsym(device, "soft_libibverbs_function");
	cm = dlsym(device, "soft_librdmacm_function");
	pthread_atfork(NULL, NULL, forked);
	__atomic_store_n(&has_device, 1, __ATOMIC_RELEASE);
}

void *soft_found(const char *function, void **known)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *f = __atomic_load_n(known, __ATOMIC_ACQUIRE);

	if (f)
		return f;
	pthread_once(&once, load);
	if (!verbs || !cm)
		return NULL;
	f = verbs(function);
	if (!f)
		f = cm(function);
	__atomic_store_n(known, f, __ATOMIC_RELEASE);
	return f;
}
