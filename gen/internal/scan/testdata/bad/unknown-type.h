int ibv_plain(unheard_of_t x);
