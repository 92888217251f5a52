struct s { int a : 1; };
struct t { char data[]; };
