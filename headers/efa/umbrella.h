#include <infiniband/efadv.h>
