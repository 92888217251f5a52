int ibv_plain(int a$b);
