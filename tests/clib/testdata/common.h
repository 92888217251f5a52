// SPDX-License-Identifier: Apache-2.0

/* What the programs share. */

#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"

/* Ends the program with status 1, after a message, unless the condition is true. */
#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		int e = errno;                                                                                         \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "line %d: not %s; errno is %d\n", __LINE__, #condition, e);                    \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Returns the struct around a context, which has the operations that came later. */
static inline struct verbs_context *extended(struct ibv_context *context)
{
	return (struct verbs_context *)((char *)context - offsetof(struct verbs_context, context));
}

/* Connects a queue pair with one of the same device, which may be itself. The peer gets the access. */
static inline void connect_qp(struct ibv_qp *qp, uint32_t peer, int access)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
	};

	CHECK(ibv_query_gid(qp->context, 1, 0, &a.ah_attr.grh.dgid) == 0);
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC));
}
