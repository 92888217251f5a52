// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"math"

	"modernc.org/cc/v4"
)

// constant is the result of an integer constant expression: a value and a type.
// An expression such as 1 / 0 has a type but no value. An expression that is
// not an integer has neither.
type constant struct {
	value int64   // value; one that exceeds math.MaxInt64 is stored with the same bits
	kind  cc.Kind // type, a key of integers; cc.InvalidKind if the expression is not an integer
	known bool    // whether the expression has a value
}

// integer is an integer type of the 64-bit Linux ABIs. One entry stands for all
// pointer types.
type integer struct {
	name     string
	size     int
	rank     int // conversion rank
	unsigned bool
}

// integers holds the integer types. It has char as signed; on some
// architectures it is unsigned.
var integers = map[cc.Kind]integer{
	cc.Bool: {"_Bool", 1, 0, true}, cc.Char: {"char", 1, 1, false}, cc.SChar: {"signed char", 1, 1, false},
	cc.UChar: {"unsigned char", 1, 1, true}, cc.Short: {"short", 2, 2, false}, cc.UShort: {"unsigned short", 2, 2, true},
	cc.Int: {"int", 4, 3, false}, cc.UInt: {"unsigned int", 4, 3, true}, cc.Long: {"long", 8, 4, false},
	cc.ULong: {"unsigned long", 8, 4, true}, cc.LongLong: {"long long", 8, 5, false}, cc.ULongLong: {"unsigned long long", 8, 5, true},
	cc.Ptr: {"pointer", 8, 6, true},
}

// unsignedOf maps a signed type to the unsigned one. It has only the types in
// which C calculates.
var unsignedOf = map[cc.Kind]cc.Kind{cc.Int: cc.UInt, cc.Long: cc.ULong, cc.LongLong: cc.ULongLong}

// inKind returns a constant with a value that fits its type.
func inKind(value int64, kind cc.Kind) constant { return constant{value, kind, true} }

func truth(b bool) constant {
	if b {
		return inKind(1, cc.Int)
	}
	return inKind(0, cc.Int)
}

// to converts c to a type. A char with its highest bit set has no known value,
// because it is negative on some architectures only.
func (c constant) to(kind cc.Kind) constant {
	t := integers[kind]
	if !c.known {
		return constant{kind: kind}
	}
	v := c.value
	switch {
	case kind == cc.Bool:
		v = truth(v != 0).value
	case t.size < 8:
		unused := 64 - 8*t.size
		if v <<= unused; t.unsigned {
			v = int64(uint64(v) >> unused)
		} else {
			v >>= unused
		}
	}
	return constant{v, kind, kind != cc.Char || v >= 0}
}

// promoted converts types that are narrower than int.
func (c constant) promoted() constant {
	if integers[c.kind].rank < integers[cc.Int].rank {
		return c.to(cc.Int)
	}
	return c
}

// alike converts two operands to the type in which C calculates with them.
func alike(a, b constant) (constant, constant) {
	a, b = a.promoted(), b.promoted()
	kind, s, u := a.kind, integers[a.kind], integers[b.kind]
	if u.rank > s.rank || u.rank == s.rank && u.unsigned {
		kind = b.kind
	}
	if integers[kind].unsigned || s.unsigned == u.unsigned {
		return a.to(kind), b.to(kind)
	}
	// The type of higher rank is signed. If it is not larger, it cannot
	// hold all values of the unsigned type.
	if s.size == u.size {
		kind = unsignedOf[kind]
	}
	return a.to(kind), b.to(kind)
}

// calculate returns the result of an operator for two values of the same type.
// The result is not known if C leaves it undefined.
func calculate(operator string, a, b constant) constant {
	unsigned := integers[a.kind].unsigned
	c := constant{kind: a.kind, known: a.known && b.known && a.kind != cc.Ptr}
	x, y := a.value, b.value
	switch operator {
	case "*":
		c.value = x * y
	case "+":
		c.value = x + y
	case "-":
		c.value = x - y
	case "&":
		c.value = x & y
	case "|":
		c.value = x | y
	case "^":
		c.value = x ^ y
	case "/", "%":
		switch {
		case y == 0 || !unsigned && y == -1 && x == math.MinInt64:
			c.known = false
		case unsigned && operator == "/":
			c.value = int64(uint64(x) / uint64(y))
		case unsigned:
			c.value = int64(uint64(x) % uint64(y))
		case operator == "/":
			c.value = x / y
		default:
			c.value = x % y
		}
	}
	return c.to(a.kind)
}

// compare returns the result of comparing two values of the same type.
func compare(operator string, a, b constant) constant {
	less, equal := a.value < b.value, a.value == b.value
	if integers[a.kind].unsigned {
		less = uint64(a.value) < uint64(b.value)
	}
	c := truth(map[string]bool{"<": less, "<=": less || equal, ">": !less && !equal, ">=": !less, "==": equal, "!=": !equal}[operator])
	c.known = a.known && b.known
	return c
}

// shift returns a shifted value, which has the type of the left operand.
func shift(operator string, a, b constant) constant {
	a, b = a.promoted(), b.promoted()
	t := integers[a.kind]
	c := constant{kind: a.kind, known: a.known && b.known && b.value >= 0 && b.value < int64(8*t.size)}
	switch {
	case !c.known:
	case operator == "<<":
		c.value = a.value << b.value
	case t.unsigned:
		c.value = int64(uint64(a.value) >> b.value)
	default:
		c.value = a.value >> b.value
	}
	return c.to(a.kind)
}
