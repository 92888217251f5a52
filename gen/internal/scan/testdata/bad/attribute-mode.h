struct s { int a __attribute__((mode(DI))); };
