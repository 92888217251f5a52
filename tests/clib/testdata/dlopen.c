// Dlopen loads the libraries as Python does, when it needs them, and lets go of them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	for (int i = 0; i < 3; i++) {
		void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
		void **(*get)(int *);
		void (*release)(void **);
		void **list;
		int n = 0;

		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		get = (void **(*)(int *))dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
		release = (void (*)(void **))dlsym(library, "ibv_free_device_list");
		list = get(&n);
		if (!list || n != 1)
			return 2;
		release(list);
		if (dlclose(library))
			return 3;
	}
	return 0;
}
