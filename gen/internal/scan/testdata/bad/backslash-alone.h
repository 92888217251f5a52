#define NUMBER 1 \
\
+ 2
int ibv_plain(void);
