struct s { __typeof__(1) x; };
