// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <poll.h>
#include <stdint.h>
#include <sys/select.h>

/* SOFT declares found, a pointer to the device's function of that name, or NULL if there is no
 * device. */
#define SOFT(function)                                                                                                 \
	static void *soft_known;                                                                                       \
	typeof(soft_##function) *found = soft_found(#function, &soft_known)

/* Returns the device's function of that name, and stores it in known for later calls. The first
 * call loads the device. */
__attribute__((visibility("default"))) void *soft_found(const char *function, void **known);

/* Reports whether the device was loaded, and not by a process that has forked this one. */
__attribute__((visibility("default"))) int soft_has_device(void);

/* poll(2) and select(2) of the system. A preloaded library may have others. */
__attribute__((visibility("default"))) int soft_system_poll(struct pollfd *fds, nfds_t nfds, int timeout);
__attribute__((visibility("default"))) int soft_system_select(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
									   struct timeval *timeout);

/* Reports whether path is that of libverbena-softroce.so, the library that has the device. */
int soft_is_device(const char *path);

/* Makes sigaction remember the program's handlers for faults instead of passing them to the
 * kernel. It is called before the device is loaded. */
void soft_keep_faults(void);

/* Passes each fault to the program's handler or to the device. It is called after the device
 * was loaded; function is a function of the device. */
void soft_share_faults(void *function);

/* Undoes soft_keep_faults, if the device could not be loaded. */
void soft_return_faults(void);

/* Reads a file as ibv_read_sysfs_file(3) does. */
int soft_read_file(const char *dir, const char *file, char *buf, size_t size);

/* SOFT_PRIVATE defines ibv_query_gid_type with a version node. */
#define SOFT_PRIVATE(node)                                                                                             \
	int soft_query_gid_type_##node(struct ibv_context *context, uint8_t port_num, unsigned int index,              \
				       unsigned int *type)                                                             \
	{                                                                                                              \
		return soft_query_gid_type(context, port_num, index, type);                                            \
	}                                                                                                              \
	__asm__(".symver soft_query_gid_type_" #node ", ibv_query_gid_type@" #node);

struct ibv_context;

/* Sets type to 1 if the type of the GID is RoCE version 2, and otherwise to 0. */
int soft_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index, unsigned int *type);
