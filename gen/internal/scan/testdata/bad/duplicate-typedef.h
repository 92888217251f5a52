typedef int other;
typedef long other;
