#include <rdma/fabric.h>
