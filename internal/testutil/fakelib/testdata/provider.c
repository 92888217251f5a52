/* Compiled by fakelib as a libibverbs.so.1 that behaves like one with a device
 * and a provider, and records every call. functions.h, which fakelib writes
 * from the newest snapshot, has each exported function and each operation. For
 * a function NAME, they use these functions, if they exist:
 *
 *	do_NAME does what a call does (without it, a call does nothing and returns 0);
 *	copy_NAME copies what the arguments point to, except for single structs. */

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "abi.h"
#include "calls.h"

/* new_number returns a number that no other object has. */
static uint32_t new_number(void)
{
	static uint32_t last;
	uint32_t number;

	pthread_mutex_lock(&lock);
	number = ++last;
	pthread_mutex_unlock(&lock);
	return number;
}

#include "copies.h"
#include "events.h"
#include "objects.h"
#include "memory.h"
#include "queues.h"

#include "functions.h"
