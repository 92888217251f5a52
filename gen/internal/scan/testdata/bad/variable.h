extern int ibv_variable;
