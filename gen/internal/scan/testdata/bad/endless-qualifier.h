struct s { const int *const ; };
