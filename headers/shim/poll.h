#pragma once
typedef unsigned long nfds_t;
struct pollfd;
