/* Functions that are inline in the headers and more than a call. */

static struct sockaddr *own_rdma_get_local_addr(struct rdma_cm_id *id)
{
	return &id->route.addr.src_addr;
}

static struct sockaddr *own_rdma_get_peer_addr(struct rdma_cm_id *id)
{
	return &id->route.addr.dst_addr;
}

