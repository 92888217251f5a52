/* Functions that need no device. */

/* The function of programs that were compiled with an older, shorter struct. */
int soft_ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr)
{
	return soft_query_port(context, port_num, (struct ibv_port_attr *)port_attr,
			       offsetof(struct ibv_port_attr, port_cap_flags2));
}

const char *soft_ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static const struct {
	enum ibv_rate rate;
	int mbps;
	int mult; /* of 2.5 Gb/s; -1: libibverbs knows none */
} rates[] = {
	{IBV_RATE_2_5_GBPS, 2500, 1},
	{IBV_RATE_5_GBPS, 5000, 2},
	{IBV_RATE_10_GBPS, 10000, 4},
	{IBV_RATE_20_GBPS, 20000, 8},
	{IBV_RATE_30_GBPS, 30000, 12},
	{IBV_RATE_40_GBPS, 40000, 16},
	{IBV_RATE_60_GBPS, 60000, 24},
	{IBV_RATE_80_GBPS, 80000, 32},
	{IBV_RATE_120_GBPS, 120000, 48},
	{IBV_RATE_14_GBPS, 14062, -1},
	{IBV_RATE_56_GBPS, 56250, -1},
	{IBV_RATE_112_GBPS, 112500, -1},
	{IBV_RATE_168_GBPS, 168750, -1},
	{IBV_RATE_25_GBPS, 25781, -1},
	{IBV_RATE_100_GBPS, 103125, -1},
	{IBV_RATE_200_GBPS, 206250, -1},
	{IBV_RATE_300_GBPS, 309375, -1},
	{IBV_RATE_28_GBPS, 28125, 11},
	{IBV_RATE_50_GBPS, 53125, 20},
	{IBV_RATE_400_GBPS, 425000, 160},
	{IBV_RATE_600_GBPS, 637500, 240},
	{IBV_RATE_800_GBPS, 850000, 320},
	{IBV_RATE_1200_GBPS, 1275000, 480},
};

#define RATES (sizeof(rates) / sizeof(rates[0]))

int soft_ibv_rate_to_mult(enum ibv_rate rate)
{
	for (size_t i = 0; i < RATES; i++) {
		if (rates[i].rate == rate)
			return rates[i].mult;
	}
	return -1;
}

enum ibv_rate soft_mult_to_ibv_rate(int mult)
{
	for (size_t i = 0; i < RATES; i++) {
		if (mult > 0 && rates[i].mult == mult)
			return rates[i].rate;
	}
	return IBV_RATE_MAX;
}

int soft_ibv_rate_to_mbps(enum ibv_rate rate)
{
	for (size_t i = 0; i < RATES; i++) {
		if (rates[i].rate == rate)
			return rates[i].mbps;
	}
	return -1;
}

enum ibv_rate soft_mbps_to_ibv_rate(int mbps)
{
	for (size_t i = 0; i < RATES; i++) {
		if (rates[i].mbps == mbps)
			return rates[i].rate;
	}
	return IBV_RATE_MAX;
}
