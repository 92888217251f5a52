#pragma once
struct timespec {
	long tv_sec;
	long tv_nsec;
};
