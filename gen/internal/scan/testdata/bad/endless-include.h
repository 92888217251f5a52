struct s {
	int *
#include "missing.h"
};
