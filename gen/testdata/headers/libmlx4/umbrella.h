#include <infiniband/mlx4dv.h>
