typedef int t;
