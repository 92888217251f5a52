struct s;
