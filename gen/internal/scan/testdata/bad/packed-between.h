int ibv_plain(void) __attribute__((unused, packed, unused));
