// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE

#include "../../capi/verbs_skeleton.h"
#include "pass.h"

#include <fcntl.h>
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

/* ibv_devinfo calls this function. It knows two values, of which 1 means RoCE version 2. */
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
