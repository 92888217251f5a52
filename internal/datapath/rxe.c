// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

#define _GNU_SOURCE /* dladdr */
#include "datapath.h"

#include <dlfcn.h>
#include <string.h>

int32_t verbena_is_rxe(uint8_t *function)
{
	Dl_info info;

	return function && dladdr(function, &info) && info.dli_fname && strstr(info.dli_fname, "/librxe-");
}
