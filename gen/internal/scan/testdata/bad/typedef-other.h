typedef int ibv_number_t;
struct kept { int a; };
typedef struct { int a; } kept;
typedef struct { int a; } *ibv_pointer_t;
typedef short ssize_t;
