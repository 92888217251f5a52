struct s { int a; };
#endif
