const char *const *ibv_pointers(int from);
