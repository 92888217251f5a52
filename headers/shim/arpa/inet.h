#pragma once
#include <netinet/in.h>
uint32_t htonl(uint32_t host);
uint16_t htons(uint16_t host);
uint32_t ntohl(uint32_t net);
uint16_t ntohs(uint16_t net);
