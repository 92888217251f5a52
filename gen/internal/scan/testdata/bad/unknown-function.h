
int ibv_unheard_of(int x);
void *ibv_gives_pointer(void);
void ibv_gives_nothing(void);
