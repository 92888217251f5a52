// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>
#include <stddef.h>

/* Fills the set with all signals but those that a fault in a thread's own code causes. To block one of
 * these does not delay it: the kernel ends the process. */
static inline void soft_all_but_faults(sigset_t *set)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};

	sigfillset(set);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(set, faults[i]);
}
