// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdint.h>

/* Functions that call Go, one for each way in which C functions report errors. library and
 * function are indexes in Go's tables of functions, and args is a struct of the arguments.
 * They all call the one function that Go exports, since each exported function makes the
 * build longer. */

enum { SOFT_VERBS, SOFT_CM, SOFT_DETECTOR };

void soft_void(int library, int function, void *args);

int64_t soft_value(int library, int function, void *args);

/* Returns 0 or an errno. */
int soft_code(int library, int function, void *args);

/* Returns 0, or -1 and sets errno. */
int soft_status(int library, int function, void *args);

/* Returns a number, or -1 and sets errno. */
int64_t soft_count(int library, int function, void *args);

/* Returns a number, or a negative errno. */
int64_t soft_negative(int library, int function, void *args);

/* Returns a number, or an errno. */
int64_t soft_wait(int library, int function, void *args);

/* Returns a pointer, or NULL and sets errno. */
void *soft_pointer(int library, int function, void *args);

/* Waits for an event of an object at the semaphore *fd, and calls a function that fills out. Returns 0,
 * or -1 and sets errno. The function is first called with NULL for out, and fails unless it knows the
 * object; fd is valid only if it does. Later calls fail with EAGAIN if the event is gone, and with EBADF
 * if the object is gone. */
int soft_event(int library, int function, void *object, const int *fd, void *out);

/* True in programs that are not written in Go. */
extern int soft_for_c;

/* Returns once Go's runtime has started and has set its signal handlers. The shared library for
 * programs that are not written in Go calls it, before any other function. */
void soft_start(void);

/* Runs a step of the node's worker. cq is the queue whose poll has found nothing. */
void soft_help(void *cq);

/* Returns 0, or a value of enum ibv_rereg_mr_err_code and sets errno. */
int soft_rereg(int library, int function, void *args);
