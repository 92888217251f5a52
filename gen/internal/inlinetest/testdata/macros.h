/* The macros that hide exported functions, as functions. */

#pragma once

#include <infiniband/verbs.h>

static int macro_ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	return ibv_query_port(context, port_num, attr);
}

/* Two of the macros ask whether access is a constant, which is what ours take
 * it for. With a constant they are called for each bit. */
#define BITS(X)                                                                                                        \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)  \
	X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30)

static struct ibv_mr *macro_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	switch (access) {
#define CASE(bit) case 1 << bit: return ibv_reg_mr(pd, addr, length, 1 << bit);
	BITS(CASE)
#undef CASE
	case 0:
		return ibv_reg_mr(pd, addr, length, 0);
	}
	return __ibv_reg_mr(pd, addr, length, (unsigned int)access, 1);
}

static struct ibv_mr *macro_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	switch (access) {
#define CASE(bit) case 1 << bit: return ibv_reg_mr_iova(pd, addr, length, iova, 1 << bit);
	BITS(CASE)
#undef CASE
	case 0:
		return ibv_reg_mr_iova(pd, addr, length, iova, 0);
	}
	return __ibv_reg_mr_iova(pd, addr, length, iova, (unsigned int)access, 1);
}
