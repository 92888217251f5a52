struct level { int a; };
enum level { LEVEL };
