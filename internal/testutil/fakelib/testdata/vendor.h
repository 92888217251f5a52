/* Functions that the libraries of drivers share. */

#pragma GCC diagnostic ignored "-Wunused-function"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "calls.h"

/* The fake libibverbs creates the queue pair. */
static struct ibv_qp *create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct verbs_context *vctx = (struct verbs_context *)((char *)context - offsetof(struct verbs_context, context));

	return vctx->create_qp_ex(context, attr);
}
