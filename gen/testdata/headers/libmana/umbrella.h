#include <infiniband/manadv.h>
