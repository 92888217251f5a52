struct s { struct s s; };
