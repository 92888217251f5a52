// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE

#include "../../face/verbs_skeleton.h"
#include "pass.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int soft_read_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[4096];
	ssize_t n;
	int fd;

	if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path))
		return errno = ENAMETOOLONG, -1;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, buf, size);
	close(fd);
	if (n > 0 && buf[n - 1] == '\n')
		buf[--n] = 0;
	else if (n >= 0 && (size_t)n < size)
		buf[n] = 0;
	return n;
}

/* What ibv_devinfo asks for. Of the two values that it knows, 1 is RoCE version 2. */
int soft_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index, unsigned int *type)
{
	SOFT(_ibv_query_gid_ex);
	struct ibv_gid_entry entry;
	int r;

	if (!found)
		return errno = ENOSYS, -1;
	r = found(context, port_num, index, &entry, 0, sizeof(entry));
	if (r)
		return errno = r, -1;
	*type = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
	return 0;
}

/* While a thread of C is in Go, it has a stack of Go's, on which there may be no room for a signal's handler.
 * So each handler gets a stack of its own, which Go sets up for threads that are in it. These stand before libc's in
 * programs that are linked to this library. Handlers that were there before, Go sees to. */

static int own_stack(int sig, const struct sigaction *action, struct sigaction *old)
{
	static int (*next)(int, const struct sigaction *, struct sigaction *);
	struct sigaction a;

	if (!next)
		next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	if (!action || (!(action->sa_flags & SA_SIGINFO) && (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN)))
		return next(sig, action, old);
	a = *action;
	a.sa_flags |= SA_ONSTACK;
	return next(sig, &a, old);
}

__attribute__((visibility("default"))) int sigaction(int sig, const struct sigaction *restrict action, struct sigaction *restrict old)
{
	return own_stack(sig, action, old);
}

__attribute__((visibility("default"))) sighandler_t signal(int sig, sighandler_t handler)
{
	struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;

	return own_stack(sig, &a, &old) ? SIG_ERR : old.sa_handler;
}
