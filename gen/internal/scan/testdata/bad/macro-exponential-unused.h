#define A 1+
#define B A A
#define C B B
#define D C C
#define E D D
#define F E E
#define G F F
#define H G G
#define I H H
#define J I I
#define K J J
#define L K K
#define M L L
#define N M M
#define O N N
#define P O O
#define Q P P
#define R Q Q
#define S R R
#define T S S
#define U T T
#define V U U
#define W V V
#define X W W
#define Y X X
#define Z Y Y
struct s { int a; };
