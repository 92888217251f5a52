#pragma once
#include <infiniband/odd.h>
#ifdef __linux__
#include "../infiniband/odd_linux.h"
#endif

enum ibv_odd_kind { IBV_ODD_A = -1, IBV_ODD_B, IBV_ODD_B2 = 0, IBV_ODD_C = 0x7fffffff };
enum ibv_odd_flag { IBV_ODD_BIT = 1, IBV_ODD_HIGH = 1U << 31 };
enum { IBV_ODD_LOOSE = -7 };

struct ibv_odd_opaque;

struct ibv_odd {
	int type, func, len, nil, string;
	union {
		struct { int a, b; } two;
		uint64_t both;
		union { uint8_t bytes[8]; uint32_t words[2]; } u;
	};
	struct {
		union { int x; char y; } inner;
		union { int z; void *w; };
		enum ibv_odd_kind kind;
	} s;
	struct ibv_odd *next, **all;
	int (*call)(struct ibv_odd *, int (*)(void), const char *);
	void *(*table[3])(int);
	uintptr_t address;
	char matrix[2][3];
	union ibv_odd_union { int i; struct ibv_sge sge; pthread_mutex_t *mutex; } named;
	pthread_cond_t cond;
	struct ibv_odd_flag_holder { enum ibv_odd_flag flags; } holder;
};

struct ibv_odd_ops {
	struct ibv_odd_ops *self;
	int (*call)(struct ibv_odd_ops *, int);
	int (*poll)(struct ibv_odd_ops *, int, struct ibv_wc *);
	int (*poll_num_entries)(struct ibv_odd_ops *, int, struct ibv_wc *);
};
