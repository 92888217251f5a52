#line 7 "infiniband/other.h"
struct s { int b : 3; };
int ibv_unheard_of(void);
