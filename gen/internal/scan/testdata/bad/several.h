int ibv_unheard_of(void);
struct s { int a : 1; float b; };
enum unheard_of { X };
int ibv_plain(struct s s, double d);
struct s2 { char data[]; } __attribute__((packed));
