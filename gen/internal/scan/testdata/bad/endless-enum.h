struct s { int a; };
enum