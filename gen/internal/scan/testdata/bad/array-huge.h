struct s { int a[1000000000000]; };
