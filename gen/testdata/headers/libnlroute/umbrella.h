#include <netlink/route/link.h>
