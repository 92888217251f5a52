struct s { int f[2](void); };
