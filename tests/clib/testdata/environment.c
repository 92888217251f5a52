// SPDX-License-Identifier: Apache-2.0

// Environment changes its environment before its first call, and prints how many segments a request may have.
// "set" sets a variable. "title" moves the environment and overwrites where it was, as programs do that show their
// state in ps: setproctitle of libbsd, PostgreSQL, Valkey.

#include "common.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct ibv_device_attr attr;
	struct ibv_device **list;
	struct ibv_context *context;

	if (strcmp(argv[1], "set") == 0) {
		setenv("VERBENA_LIMITS", "sge=3", 1);
	} else if (strcmp(argv[1], "unset") == 0) {
		unsetenv("VERBENA_LIMITS");
	} else {
		char **old = environ, **copy = calloc(1000, sizeof(*copy));

		for (int i = 0; old[i] && i < 999; i++)
			copy[i] = strdup(old[i]);
		for (int i = 0; old[i]; i++)
			memset(old[i], 0, strlen(old[i]));
		environ = copy;
	}
	list = ibv_get_device_list(NULL);
	if (!list || !list[0])
		return 2;
	context = ibv_open_device(list[0]);
	if (!context || ibv_query_device(context, &attr))
		return 3;
	printf("%d\n", attr.max_sge);
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
