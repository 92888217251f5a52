int ibv_plain(void) __asm__("other");
