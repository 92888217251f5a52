// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* SOFT declares found: the device's function of a name, NULL if there is no device. */
#define SOFT(function)                                                                                                 \
	static void *soft_known;                                                                                       \
	typeof(soft_##function) *found = soft_found(#function, &soft_known)

/* Returns the device's function, which it keeps in known. It loads the device when it is first called. */
__attribute__((visibility("default"))) void *soft_found(const char *function, void **known);

/* Reports whether a path is that of the library that has the device. */
int soft_is_device(const char *path);

/* Keep what the program asks for when the device meets faults, from before the device is loaded on. */
void soft_keep_faults(void);

/* Shares faults between the program and the device, which is loaded and has this function. */
void soft_share_faults(void *function);

/* Undoes soft_keep_faults, as the device could not be loaded. */
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

/* Says whether a GID is of RoCE version 2 (1) or not (0). */
int soft_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index, unsigned int *type);
