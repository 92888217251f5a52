// SPDX-License-Identifier: Apache-2.0

#pragma once
typedef unsigned long nfds_t;
struct pollfd;
