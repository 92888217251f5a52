#include <stddef.h>
#include <stdint.h>
#include <linux/types.h>
#include <typedefs.h>
#include <records.h>
#include <layouts.h>
