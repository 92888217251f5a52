enum kind { KIND_A };
enum kind { KIND_B };
