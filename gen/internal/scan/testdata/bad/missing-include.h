
#include <infiniband/missing.h>
