#pragma once
#ifndef __DEFINED_struct_timespec
#define __DEFINED_struct_timespec /* by which musl's headers know that it is there */
#define _STRUCT_TIMESPEC /* and the kernel's */
struct timespec {
	long tv_sec;
	long tv_nsec;
};
#endif
