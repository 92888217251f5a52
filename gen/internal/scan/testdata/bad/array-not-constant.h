int ibv_plain(int n, int (*a)[n], int b[2][n], int (*)[n]);
