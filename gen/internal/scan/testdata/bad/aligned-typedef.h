typedef int wide __attribute__((aligned(16)));
struct s { wide w; };
