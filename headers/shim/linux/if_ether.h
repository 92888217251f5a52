#pragma once
#define ETH_ALEN 6
