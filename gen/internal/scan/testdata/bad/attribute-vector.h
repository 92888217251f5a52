struct s { int a __attribute__((vector_size(16))); };
