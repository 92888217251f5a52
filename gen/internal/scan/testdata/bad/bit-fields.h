struct floating { float f : 3; };
struct wide { uint8_t n : 9; };
struct pointer { char *p : 3; };
struct aligned { int n : 3 __attribute__((aligned(8))); };
struct boolean { _Bool b : 2; };
struct nameless { enum { BITS_KIND_A } kind : 2, : 3; };
