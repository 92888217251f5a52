#pragma once
#include <stddef.h>
typedef long ssize_t;
typedef long off_t;
typedef unsigned long ino_t;
typedef unsigned long dev_t;
typedef unsigned long nlink_t;
