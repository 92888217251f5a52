// SPDX-License-Identifier: Apache-2.0

/* What the programs share. */

#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"

/* Ends the program with status 1, after a message, unless the condition is true. */
#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		int e = errno;                                                                                         \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "line %d: not %s; errno is %d\n", __LINE__, #condition, e);                    \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Returns the struct around a context, which has the operations that came later. */
static inline struct verbs_context *extended(struct ibv_context *context)
{
	return (struct verbs_context *)((char *)context - offsetof(struct verbs_context, context));
}
