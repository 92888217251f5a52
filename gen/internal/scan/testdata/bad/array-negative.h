struct s { int a[-1]; };
