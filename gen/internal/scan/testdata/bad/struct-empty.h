struct s { };
union u { };
