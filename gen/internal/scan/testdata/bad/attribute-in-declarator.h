struct s { int (__attribute__((ms_abi)) *call)(int); };
