// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdint.h>

/* Calls of Go's functions, one for each way in which C's functions report errors. Go has a
 * table of functions for each library; args is a struct of the arguments that the function
 * takes. Go exports one function for all of them, as each that it exports takes long to build. */

enum { SOFT_VERBS, SOFT_CM };

void soft_void(int library, int function, void *args);

int64_t soft_value(int library, int function, void *args);

/* Returns the errno. */
int soft_code(int library, int function, void *args);

/* Returns 0, or -1 and sets errno. */
int soft_status(int library, int function, void *args);

/* Returns a number, or -1 and sets errno. */
int64_t soft_count(int library, int function, void *args);

/* Returns a number, or the negative errno. */
int64_t soft_negative(int library, int function, void *args);

/* Returns a number, or the errno. */
int64_t soft_wait(int library, int function, void *args);

/* Returns a pointer, or NULL and sets errno. */
void *soft_pointer(int library, int function, void *args);

/* Returns 0, or what has failed and sets errno. */
int soft_rereg(int library, int function, void *args);
