/* The headers that are bound. */
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
