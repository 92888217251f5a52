struct s { char a[0x7fffffffffffffff][16]; };
struct t { char a[1 << 20][1 << 20]; };
