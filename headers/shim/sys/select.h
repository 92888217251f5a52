// SPDX-License-Identifier: Apache-2.0

#pragma once
typedef struct fd_set fd_set;
struct timeval;
