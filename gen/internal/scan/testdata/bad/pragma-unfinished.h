_Pragma("/*")
