_Static_assert(sizeof(int) == 8, "int is too small");
int ibv_plain(void);
