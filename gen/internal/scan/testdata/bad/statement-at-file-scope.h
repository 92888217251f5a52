({ int a; });
