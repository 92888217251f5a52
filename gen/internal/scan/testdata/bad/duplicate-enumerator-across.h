enum kind { KIND_A };
enum level { KIND_A };
