//go:build race

#include "textflag.h"

// func CompareAndSwap(word *uint64, old, n uint64) bool
TEXT ·CompareAndSwap(SB), NOSPLIT, $0-25
	MOVD word+0(FP), R0
	MOVD old+8(FP), R1
	MOVD n+16(FP), R2
again:
	LDAXR (R0), R3
	CMP R1, R3
	BNE done
	STLXR R2, (R0), R4
	CBNZ R4, again
	CMP R1, R3
done:
	CSET EQ, R5
	MOVB R5, ret+24(FP)
	RET
