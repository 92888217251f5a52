/* Compiled by fakelib as a libefa.so.1 that uses the libibverbs.so.1 of
 * provider.c, and records every call as that does. Its device is an
 * adapter. */

#include "vendor.h"

static int do_efadv_query_device(struct ibv_context *context, struct efadv_device_attr *attr, uint32_t inlen)
{
	*attr = (struct efadv_device_attr){
		.max_sq_wr = 4096, .max_rq_wr = 8192, .max_sq_sge = 2, .max_rq_sge = 3, .inline_buf_size = 32,
		.device_caps = EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, .max_rdma_size = 1 << 30,
	};
	return 0;
}

static int do_efadv_query_ah(struct ibv_ah *ah, struct efadv_ah_attr *attr, uint32_t inlen)
{
	*attr = (struct efadv_ah_attr){ .ahn = 77 };
	return 0;
}

static struct ibv_qp *do_efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
					    struct efadv_qp_init_attr *efa, uint32_t inlen)
{
	return create_qp(context, attr);
}

#include "functions.h"
