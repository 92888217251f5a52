struct packed { char a; int b; struct { short c; long d; } in; union { uint64_t n; char t; } u; } __attribute__((packed));
struct packed_aligned { char a; long b; } __attribute__((packed, aligned(4)));
struct packed_member { char a; int b __attribute__((packed)); short c; };
struct packed_inside { char a; struct { char b; int c; } __attribute__((__packed__)) in; int d; };
struct aligned { char a; } __attribute__((aligned(32)));
struct aligned_member { char a; char b __attribute__((aligned(16))); int c; };
struct aligned_small { short a; } __attribute__((aligned(1)));
struct holds { char a; struct packed p; struct aligned q; struct packed_aligned r[2]; };
typedef struct { char a; void *b; } __attribute__((packed)) packed_t;
union packed_union { char a; long b; packed_t c; } __attribute__((packed));
#pragma pack(push, 2)
struct pragma { char a; long b; struct { char c; int d; } in; };
#pragma pack(1)
struct pragma_one { char a; long b; };
#pragma pack(pop)
struct after { char a; long b; };

struct bits { unsigned int a : 3; int b : 5; unsigned int : 0; unsigned int c : 31, d : 2; uint8_t e : 4; uint8_t : 2; uint8_t f : 4; uint64_t g : 33; _Bool h : 1; };
struct bits_mixed { char a; uint32_t b : 24; uint16_t c : 9; char d; long e : 50; };
struct bits_packed { uint32_t a : 7; uint64_t b : 40; int32_t c : 20; uint8_t d; } __attribute__((packed));
struct bits_inside { int a; struct { uint32_t b : 4; uint32_t c : 28; }; union { uint16_t d : 3; struct { uint16_t e : 9; } f; }; };
union bits_union { uint32_t a : 11; uint32_t whole; };
enum bits_kind { BITS_A, BITS_B };
struct bits_enum { enum bits_kind a : 4; int b : 28; };

struct nameless { int a; struct { int b; union { int c; struct { short d; short e; }; char g[0]; }; }; struct { uint32_t n; uint8_t data[]; } last; };
struct empty_tail { int n; struct nameless entries[0]; };
union flexible { int n; long more[0]; };
enum marked { MARKED_OLD __attribute__((deprecated)), MARKED_NEW };
int ibv_marked(int a) __attribute__((alloc_align(1), no_sanitize("address"), nonstring, tainted_args));
_Pragma("GCC diagnostic push") int ibv_pragma(void); _Pragma("GCC diagnostic pop")
#pragma pack(push, 2)
struct pragma_bits { char a[5]; uint32_t b : 31; uint64_t c : 40; uint16_t d : 16; uint8_t e; uint8_t : 0; uint16_t f : 9; };
struct pragma_aligned { char a; int b __attribute__((aligned(8))); struct { char c; long d; } e; };
#pragma pack(8)
struct pragma_wide { char a[5]; uint64_t b : 40; long c __attribute__((aligned(32))); };
#pragma pack(pop)
struct volatiles { volatile int a; const volatile char *b; void *volatile c; volatile enum bits_kind d; volatile uint16_t e : 9; };
int ibv_moving(volatile int *to, const volatile void *from);
