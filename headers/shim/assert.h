#pragma once
#define assert(condition) ((void)(condition))
