#ifndef IBV_ODD_LINUX_H
#define IBV_ODD_LINUX_H
int ibv_odd_linux(int);
#endif
