struct s { int a; };
#inclde <infiniband/more.h>
#endfi
