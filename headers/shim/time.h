// SPDX-License-Identifier: Apache-2.0

#pragma once
struct timespec {
	long tv_sec;
	long tv_nsec;
};
