struct point { float x; double y; };
union word { uint32_t whole; uint8_t bytes[4]; };
struct point ibv_mirror(struct point p, union word w);
union word ibv_word(void);
double ibv_scale(float by, double value);
extern int ibv_level;
extern const char *const ibv_names[];
extern struct point ibv_origin __attribute__((visibility("default")));
#define JOINED "a \"text\"\n\001" "joined"
#define EMPTY ""
#define RATIO 1.5
#define THIRD (1 / 3.0f)
enum wide { WIDE_FIRST = 1, WIDE_TOP = 1ULL << 40 };
enum wide_bits { WIDE_BIT_0 = 1, WIDE_BIT_63 = 1ULL << 63 };
enum wide_below { WIDE_BELOW = -1LL << 40 };
struct wides { char c; enum wide w; enum wide_bits b; };
enum wide ibv_wide(enum wide_bits b);
#define WIDE_RENAMED WIDE_TOP
#define WIDE_SMALL WIDE_FIRST
#define WIDE_NEGATIVE WIDE_BELOW
#define WIDE_SUM (WIDE_TOP | WIDE_FIRST)
#define WIDE_LESS (WIDE_FIRST - 2 < 0)
#define WIDE_COMPLEMENT ~WIDE_BIT_63
