enum unheard_of { UNHEARD };
enum { NAMELESS };
