typedef struct { int x; } other;
struct s { other o; };
