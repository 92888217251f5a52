/* Calls the inline functions of mlx5dv.h and ours, and says where they differ. */

#include <infiniband/mlx5dv.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What the stubs have around our functions. */
static int present;
#define LIB(name) (present ? name : NULL)
#define MISSING INT32_MIN

static int lacking(void)
{
	errno = MISSING;
	return -1;
}

static void *null(int code)
{
	errno = code;
	return NULL;
}

/* What the library was called with. */
static uint64_t called[6];

#define CALLED(...) memcpy(called, (uint64_t[6]){ __VA_ARGS__ }, sizeof(called))

int _mlx5dv_mkey_check(struct mlx5dv_mkey *mkey, struct mlx5dv_mkey_err *err_info, size_t err_info_size)
{
	CALLED(1, (uintptr_t)mkey, (uintptr_t)err_info, err_info_size);
	return 11;
}

int _mlx5dv_query_port(struct ibv_context *context, uint32_t port_num, struct mlx5dv_port *info, size_t info_len)
{
	CALLED(2, (uintptr_t)context, port_num, (uintptr_t)info, info_len);
	return 22;
}

struct ibv_flow *__mlx5dv_create_flow(struct mlx5dv_flow_matcher *matcher, struct mlx5dv_flow_match_parameters *match_value,
				      size_t num_actions, struct mlx5dv_flow_action_attr actions_attr[], size_t attr_len)
{
	CALLED(3, (uintptr_t)matcher, (uintptr_t)match_value, num_actions, (uintptr_t)actions_attr, attr_len);
	return (void *)33;
}

#include "own_libmlx5.c"

static void agree(const char *function, uint64_t ours, uint64_t real, const uint64_t *seen)
{
	if (ours != real || memcmp(seen, called, sizeof(called))) {
		printf("%s: ours %#" PRIx64 ", the header's %#" PRIx64 "\n", function, ours, real);
		exit(1);
	}
}

static uint64_t random64(void)
{
	return (uint64_t)random() << 62 ^ (uint64_t)random() << 31 ^ (uint64_t)random();
}

#define COMPARE(function, ...) \
	do { \
		uint64_t seen[6], ours = (uint64_t)own_##function(__VA_ARGS__); \
 \
		memcpy(seen, called, sizeof(seen)); \
		memset(called, 0, sizeof(called)); \
		agree(#function, ours, (uint64_t)function(__VA_ARGS__), seen); \
	} while (0)

#define REFUSED(call) \
	do { \
		errno = 0; \
		(void)(call); \
		if (errno != MISSING) { \
			printf(#call " does not miss the function\n"); \
			return 1; \
		} \
	} while (0)

int main(void)
{
	void *a = (void *)0x1000, *b = (void *)0x2000, *c = (void *)0x3000;

	REFUSED(own_mlx5dv_mkey_check(a, b));
	REFUSED(own_mlx5dv_query_port(a, 7, b));
	REFUSED(own__mlx5dv_create_flow(a, b, 3, c));
	present = 1;
	COMPARE(mlx5dv_mkey_check, a, b);
	COMPARE(mlx5dv_query_port, a, 7, b);
	COMPARE(_mlx5dv_create_flow, a, b, 3, c);
	memset(called, 0, sizeof(called));
	for (int i = 0; i < 1000000; i++) {
		struct mlx5dv_clock_info clock = {
			.nsec = random64(), .last_cycles = random64(), .frac = random64() >> (i % 64), .mult = (uint32_t)random64(),
			.shift = (uint32_t)(i % 40), .mask = UINT64_MAX >> (i % 3 * 16),
		};
		uint64_t near = clock.last_cycles + (uint64_t)(i % 5 - 2); /* or as far away as can be */
		uint64_t at = i % 2 ? random64() : i % 4 ? near : near + clock.mask / 2;

		COMPARE(mlx5dv_ts_to_ns, &clock, at);
	}
	printf("4 functions agree\n");
	return 0;
}
