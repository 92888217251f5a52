int ibv_defined = 1;
static const int ibv_static;
extern int ibv_labelled __asm__("other");
extern struct missing ibv_missing;
