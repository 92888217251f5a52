// SPDX-License-Identifier: Apache-2.0

#pragma once
#define ETH_ALEN 6
