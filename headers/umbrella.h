/* What is read of the headers that conventions.txt says are bound; they include the others. One that came after the
 * oldest version in api/ is included in #if __has_include(<infiniband/new.h>) ... #endif. */
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
#include <infiniband/ib.h>
#include <infiniband/opcode.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
