#include <infiniband/hnsdv.h>
