struct later;
struct s { struct later l; };
