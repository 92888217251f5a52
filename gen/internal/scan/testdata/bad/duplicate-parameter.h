int ibv_twice(int a, int a);
