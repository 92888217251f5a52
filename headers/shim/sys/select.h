#pragma once
typedef struct fd_set fd_set;
struct timeval;
