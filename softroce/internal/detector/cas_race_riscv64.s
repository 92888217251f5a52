//go:build race

#include "textflag.h"

// func CompareAndSwap(word *uint64, old, n uint64) bool
TEXT ·CompareAndSwap(SB), NOSPLIT, $0-25
	MOV word+0(FP), A0
	MOV old+8(FP), A1
	MOV n+16(FP), A2
	MOV ZERO, A5
again:
	LRD (A0), A3
	BNE A3, A1, done
	SCD A2, (A0), A4
	BNE A4, ZERO, again
	MOV $1, A5
done:
	MOVB A5, ret+24(FP)
	RET
