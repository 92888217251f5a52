#include <infiniband/mad.h>
