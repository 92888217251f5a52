// SPDX-License-Identifier: Apache-2.0

/* strings prints what the C libraries' own functions return for the values
 * from -2 to 64, one line each: function, value, text.
 *
 *   strings LIBIBVERBS LIBRDMACM        paths, or sonames
 */
#include <dlfcn.h>
#include <stdio.h>

struct function {
	int library; /* index of the argument */
	const char *name;
};

static const struct function functions[] = {
	{2, "rdma_event_str"},
	{1, "ibv_wc_status_str"},
	{1, "ibv_event_type_str"},
	{1, "ibv_node_type_str"},
	{1, "ibv_port_state_str"},
};

int main(int argc, char **argv)
{
	void *library[3];

	if (argc != 3) {
		fprintf(stderr, "usage: %s LIBIBVERBS LIBRDMACM\n", argv[0]);
		return 2;
	}
	for (int i = 1; i <= 2; i++) {
		library[i] = dlopen(argv[i], RTLD_NOW);
		if (!library[i]) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		const char *(*call)(int) =
			(const char *(*)(int))dlsym(library[functions[i].library], functions[i].name);

		if (!call) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		for (int value = -2; value <= 64; value++)
			printf("%s %d %s\n", functions[i].name, value, call(value));
	}
	return 0;
}
