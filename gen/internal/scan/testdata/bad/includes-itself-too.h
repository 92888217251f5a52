struct s { int a; };
#include "verbs.h"
