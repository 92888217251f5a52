#pragma once
#include <stdint.h>
#include <linux/types.h>
#include <sys/socket.h>
/* By which the kernel's headers know that these are there. */
#define __UAPI_DEF_IN_ADDR 0
#define __UAPI_DEF_IN_IPPROTO 0
#define __UAPI_DEF_IN_PKTINFO 0
#define __UAPI_DEF_IP_MREQ 0
#define __UAPI_DEF_SOCKADDR_IN 0
#define __UAPI_DEF_IN_CLASS 0
#define __UAPI_DEF_IN6_ADDR 0
#define __UAPI_DEF_IN6_ADDR_ALT 0
#define __UAPI_DEF_SOCKADDR_IN6 0
#define __UAPI_DEF_IPV6_MREQ 0
#define __UAPI_DEF_IPPROTO_V6 0
#define __UAPI_DEF_IPV6_OPTIONS 0
#define __UAPI_DEF_IN6_PKTINFO 0
#define __UAPI_DEF_IP6_MTUINFO 0
typedef uint32_t in_addr_t;
typedef uint16_t in_port_t;
struct in_addr {
	__be32 s_addr;
};
struct in6_addr {
	union {
		uint8_t s6_addr[16];
		__be16 s6_addr16[8];
		__be32 s6_addr32[4];
	};
};
struct sockaddr_in {
	sa_family_t sin_family;
	__be16 sin_port;
	struct in_addr sin_addr;
	uint8_t sin_zero[8];
};
struct sockaddr_in6 {
	sa_family_t sin6_family;
	__be16 sin6_port;
	__be32 sin6_flowinfo;
	struct in6_addr sin6_addr;
	uint32_t sin6_scope_id;
};
