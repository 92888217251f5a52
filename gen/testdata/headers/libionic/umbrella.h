#include <infiniband/ionic_dv.h>
