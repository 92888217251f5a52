struct s { char a[sizeof(struct t { int b; })]; };
