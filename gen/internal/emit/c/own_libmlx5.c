/* Functions that are inline in mlx5dv.h and more than a call: most tell the library which version of a struct the caller
 * was compiled with. */

static int own_mlx5dv_mkey_check(struct mlx5dv_mkey *mkey, struct mlx5dv_mkey_err *err_info)
{
	if (!LIB(_mlx5dv_mkey_check))
		return lacking();
	return LIB(_mlx5dv_mkey_check)(mkey, err_info, sizeof(*err_info));
}

static struct ibv_flow *own__mlx5dv_create_flow(struct mlx5dv_flow_matcher *matcher, struct mlx5dv_flow_match_parameters *match_value,
						size_t num_actions, struct mlx5dv_flow_action_attr *actions_attr)
{
	if (!LIB(__mlx5dv_create_flow))
		return null(MISSING);
	return LIB(__mlx5dv_create_flow)(matcher, match_value, num_actions, actions_attr, sizeof(*actions_attr));
}

/* A timestamp of more than half the counter's range ahead of the last one is one from before it. */
static uint64_t own_mlx5dv_ts_to_ns(struct mlx5dv_clock_info *clock_info, uint64_t device_timestamp)
{
	uint64_t ahead = (device_timestamp - clock_info->last_cycles) & clock_info->mask;
	uint64_t behind = (clock_info->last_cycles - device_timestamp) & clock_info->mask;

	if (ahead > clock_info->mask / 2)
		return clock_info->nsec - ((behind * clock_info->mult - clock_info->frac) >> clock_info->shift);
	return clock_info->nsec + ((ahead * clock_info->mult + clock_info->frac) >> clock_info->shift);
}

static int own_mlx5dv_query_port(struct ibv_context *context, uint32_t port_num, struct mlx5_ib_uapi_query_port *info)
{
	if (!LIB(_mlx5dv_query_port))
		return lacking();
	return LIB(_mlx5dv_query_port)(context, port_num, info, sizeof(*info));
}
