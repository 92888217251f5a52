struct s { long double a; };
