#include "libc.h"
ssize_t ibv_plain(void);
