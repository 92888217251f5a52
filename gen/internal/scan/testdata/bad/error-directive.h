#error not for you
