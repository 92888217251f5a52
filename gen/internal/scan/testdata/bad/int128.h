struct s { __int128 a; };
