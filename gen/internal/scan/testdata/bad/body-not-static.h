int ibv_own(void) { return 1; }
inline int ibv_plain(void) { return 1; }
