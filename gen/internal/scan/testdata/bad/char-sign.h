#define SIGN '\xff'
#define CAST (char)-1
struct s { char a[(char)200 < 0 ? 4 : 8]; };
enum kind { KIND_A = '\377' };
