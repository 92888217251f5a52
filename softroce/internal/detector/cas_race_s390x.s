//go:build race

#include "textflag.h"

// func CompareAndSwap(word *uint64, old, n uint64) bool
TEXT ·CompareAndSwap(SB), NOSPLIT, $0-25
	MOVD word+0(FP), R3
	MOVD old+8(FP), R4
	MOVD n+16(FP), R5
	MOVD $0, R6
	CSG R4, R5, 0(R3)
	BNE done
	MOVD $1, R6
done:
	MOVB R6, ret+24(FP)
	RET
