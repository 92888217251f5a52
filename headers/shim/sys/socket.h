#pragma once
#include <sys/types.h>
typedef unsigned int socklen_t;
typedef unsigned short sa_family_t;
struct sockaddr {
	sa_family_t sa_family;
	char sa_data[14];
};
struct sockaddr_storage {
	sa_family_t ss_family;
	char __ss_padding[118];
	unsigned long __ss_align;
};
struct msghdr;
struct iovec;
