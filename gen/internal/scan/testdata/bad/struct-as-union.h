struct s { int a; };
int ibv_plain(union s *s);
