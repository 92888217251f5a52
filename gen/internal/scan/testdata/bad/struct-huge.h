struct s { char a[1 << 30]; };
struct t { struct s s[3]; };
