register int ibv_plain(void);
_Thread_local int number;
