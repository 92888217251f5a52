// SPDX-License-Identifier: Apache-2.0

#pragma once
#include <stddef.h>
typedef long ssize_t;
typedef long off_t;
