// SPDX-License-Identifier: Apache-2.0

// Onelibrary is linked to librdmacm alone, so libc stands before libibverbs.

struct rdma_event_channel *rdma_create_event_channel(void);
void rdma_destroy_event_channel(struct rdma_event_channel *channel);

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	if (!channel)
		return 1;
	rdma_destroy_event_channel(channel);
	return 0;
}
