/* Compiled by fakelib as a libmlx5.so.1 that uses the libibverbs.so.1 of
 * provider.c, and records every call as that does. Its device is an
 * adapter. */

#include "vendor.h"

static void set_mlx5dv_qp_ex(struct mlx5dv_qp_ex *table);

static _Bool do_mlx5dv_is_supported(struct ibv_device *device)
{
	return 1;
}

/* Reports what the caller has asked for, except for one bit. */
static int do_mlx5dv_query_device(struct ibv_context *context, struct mlx5dv_context *attr)
{
	uint64_t told = attr->comp_mask & ~(uint64_t)MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS;

	*attr = (struct mlx5dv_context){
		.flags = MLX5DV_CONTEXT_FLAGS_BLUEFLAME, .comp_mask = told, .num_lag_ports = 2, .max_dc_rd_atom = 16,
		.max_dc_init_rd_atom = 8, .dci_streams_caps = { .max_log_num_concurent = 5, .max_log_num_errored = 4 },
	};
	return 0;
}

static struct ibv_qp *do_mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
					  struct mlx5dv_qp_init_attr *mlx5)
{
	return create_qp(context, attr);
}

static struct mlx5dv_qp_ex *do_mlx5dv_qp_ex_from_ibv_qp_ex(struct ibv_qp_ex *qp)
{
	static struct mlx5dv_qp_ex ex;

	set_mlx5dv_qp_ex(&ex);
	return &ex;
}

#include "functions.h"
