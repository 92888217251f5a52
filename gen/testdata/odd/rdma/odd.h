#pragma once

enum rdma_odd_kind { RDMA_ODD_A };

struct ibv_odd_hidden;
struct rdma_odd_hidden;

struct rdma_odd {
	struct ibv_odd *odd;
	enum ibv_odd_kind kind;
	enum rdma_odd_kind own;
	struct sockaddr *addr;
	struct rdma_odd_opaque *opaque;
	struct foreign *foreign;
};

int rdma_odd_hide(struct ibv_odd_hidden *, const struct rdma_odd_hidden *const);
int rdma_odd_do(struct rdma_odd *libibverbs, enum rdma_odd_kind, enum ibv_odd_kind ibv, struct foreign *, struct ibv_sge *);

#define RDMA_ODD_SAME IBV_ODD_B
#define rdma_odd_ibv ibv_odd
#define rdma_odd_kinds ibv_odd_kind
