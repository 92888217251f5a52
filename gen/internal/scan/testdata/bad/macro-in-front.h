int ibv_twice(int first);
#define ibv_twice(first) (first + 1)
