// SPDX-License-Identifier: Apache-2.0

/* Opens a file in a signal handler whose stack has little room beside what the system puts there, and the device's
 * file outside of the handler. */

#define _GNU_SOURCE

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE (256 << 10)
#define ROOM 2048

static volatile uintptr_t at; /* where the first handler's variables are */
static volatile int opened = -1;

static void look(int signal)
{
	at = (uintptr_t)__builtin_frame_address(0);
}

static void handle(int signal)
{
	opened = open("/dev/null", O_RDONLY);
}

/* Handles a signal on the last bytes of a stack. The page before them cannot be written: a handler that needs more
 * ends the program. */
static uintptr_t handle_on(size_t size, void (*handler)(int))
{
	size_t page = sysconf(_SC_PAGESIZE), rounded = (size + page - 1) / page * page;
	char *stack = mmap(NULL, page + rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t alternate = {.ss_sp = stack + page, .ss_size = size};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};

	if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE) || sigaltstack(&alternate, NULL) || sigaction(SIGUSR1, &action, NULL))
		_exit(2);
	raise(SIGUSR1);
	return (uintptr_t)stack + page + size;
}

int main(void)
{
	uintptr_t end = handle_on(LARGE, look);

	handle_on(end - at + ROOM, handle);
	return opened < 0 || open("/dev/infiniband/uverbs0", O_RDWR) < 0;
}
