#if 1
struct s { int a; };
