int ibv_plain(void) __attribute__((unavailable));
