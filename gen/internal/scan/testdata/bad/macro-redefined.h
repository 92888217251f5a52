#define NUMBER 1
#define NUMBER 2
int ibv_plain(void);
