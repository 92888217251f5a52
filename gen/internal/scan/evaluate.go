// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"math"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// constants evaluates the constant expressions in which cc has other types than
// C. In C, an enumerator is an int if its value fits an int. In cc, it is an
// int64 inside its enum; outside the enum, it is unsigned if the value of
// another enumerator of the enum does not fit an int. cc also makes either all
// enums compatible with int, or none; see its Config.UnsignedEnums.
// TestCCEnumerators fails when a new version of cc does as C.
type constants struct {
	enumerators map[*cc.Enumerator]constant
	odd         map[string]bool // enumerators to which cc gives another type than C
	inside      map[string]bool // enumerators of the enum that is being read
}

func newConstants(ast *cc.AST) *constants {
	c := &constants{enumerators: map[*cc.Enumerator]constant{}, odd: map[string]bool{}}
	for name, nodes := range ast.Scope.Nodes {
		for _, n := range nodes {
			if e, ok := n.(*cc.Enumerator); ok && e.Type().Kind() != cc.Int && (e.Type().Size() == 8 || c.ccs(e).isInt()) {
				c.odd[name] = true
			}
		}
	}
	return c
}

// integerKind returns t if it is an integer type. For an enum, it returns the
// integer type that gcc and clang use: unsigned int if no value is negative.
func (c *constants) integerKind(t cc.Type) (cc.Kind, bool) {
	if e, ok := t.(*cc.EnumType); ok && (e.Size() == 4 || e.Size() == 8) {
		return c.enumKind(e.Enumerators(), e.Size()), true
	}
	_, ok := integers[t.Kind()]
	return t.Kind(), ok
}

// enumKind returns the integer type of an enum.
func (c *constants) enumKind(enumerators []*cc.Enumerator, size int64) cc.Kind {
	isSigned := slices.ContainsFunc(enumerators, func(n *cc.Enumerator) bool {
		v := c.enumerators[n]
		return v.value < 0 && !integers[v.kind].unsigned
	})
	switch {
	case size == 8 && isSigned:
		return cc.Long
	case size == 8:
		return cc.ULong
	case isSigned:
		return cc.Int
	}
	return cc.UInt
}

// enum evaluates and records the enumerators of an enum.
func (c *constants) enum(e *cc.EnumSpecifier) {
	c.inside = map[string]bool{}
	next := inKind(0, cc.Int)
	var all []*cc.Enumerator
	for l := e.EnumeratorList; l != nil; l = l.EnumeratorList {
		v := next
		if l.Enumerator.Case == cc.EnumeratorExpr {
			v = c.of(l.Enumerator.ConstantExpression)
		}
		if v = v.promoted(); v.isInt() {
			v.kind = cc.Int
		}
		next = calculate("+", v, inKind(1, v.kind))
		if v.kind == cc.Int && v.value == math.MaxInt32 {
			next = inKind(v.value+1, cc.UInt)
		}
		c.enumerators[l.Enumerator] = v
		c.inside[l.Enumerator.Token.SrcStr()] = true
		all = append(all, l.Enumerator)
	}
	c.inside = nil
	kind := c.enumKind(all, e.Type().Size())
	for _, n := range all {
		if v := c.enumerators[n]; !v.isInt() {
			v.kind = kind
			c.enumerators[n] = v
		}
	}
}

// isInt reports whether the value of c is known and fits an int.
func (c constant) isInt() bool {
	isLarge := integers[c.kind].unsigned && c.value < 0 // unsigned long
	return c.known && !isLarge && c.value >= math.MinInt32 && c.value <= math.MaxInt32
}

// isOdd reports whether cc may give an expression of these words another type
// or value than C, or whether C's value may depend on the architecture.
func (c *constants) isOdd(words []string) bool {
	return c.hasOdd(words) || slices.ContainsFunc(words, func(w string) bool {
		return w == "enum" || w == "char" || strings.HasPrefix(w, `'\`) || strings.HasPrefix(w, "L'")
	})
}

// hasOdd reports whether one of the words is an enumerator to which cc gives
// another type than C.
func (c *constants) hasOdd(words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return c.odd[w] || c.inside[w] })
}

// of returns the value of an expression.
func (c *constants) of(n cc.ExpressionNode) constant {
	if !c.isOdd(wordsOf(n)) {
		return c.ccs(n)
	}
	return c.evaluate(n)
}

func (c *constants) evaluate(n cc.ExpressionNode) constant {
	switch n := n.(type) {
	case *cc.ConstantExpression:
		return c.evaluate(n.ConditionalExpression)
	case *cc.ExpressionList:
		if n.ExpressionList == nil {
			return c.evaluate(n.AssignmentExpression)
		}
		return constant{}
	case *cc.ConditionalExpression:
		return c.conditional(n)
	case *cc.CastExpression:
		return c.cast(n)
	case *cc.UnaryExpression:
		return c.unary(n)
	case *cc.PrimaryExpression:
		return c.primary(n)
	}
	return c.binary(n)
}

func wordsOf(n cc.Node) []string {
	var words []string
	for _, t := range tokensOf(n) {
		words = append(words, t.SrcStr())
	}
	return words
}

// ccs returns the value that cc has computed for an expression.
func (c *constants) ccs(n interface {
	Type() cc.Type
	Value() cc.Value
},
) constant {
	kind, ok := c.integerKind(n.Type())
	if !ok {
		return constant{}
	}
	v, isInteger := integerOf(n.Value())
	return constant{v, cc.LongLong, isInteger}.to(kind)
}

func (c *constants) primary(n *cc.PrimaryExpression) constant {
	switch n.Case {
	case cc.PrimaryExpressionIdent:
		if e, ok := n.ResolvedTo().(*cc.Enumerator); ok {
			return c.enumerators[e]
		}
	case cc.PrimaryExpressionInt:
		return c.ccs(n)
	case cc.PrimaryExpressionChar:
		if v := c.ccs(n); v.value >= 0 { // a negative value depends on whether char is signed
			return v
		}
	case cc.PrimaryExpressionExpr:
		return c.evaluate(n.ExpressionList)
	}
	return constant{}
}

func (c *constants) unary(n *cc.UnaryExpression) constant {
	switch n.Case {
	case cc.UnaryExpressionPostfix:
		return c.evaluate(n.PostfixExpression)
	case cc.UnaryExpressionSizeofExpr, cc.UnaryExpressionAlignofExpr:
		if v := c.evaluate(n.UnaryExpression); v.kind != cc.InvalidKind {
			return inKind(int64(integers[v.kind].size), cc.ULong)
		}
		fallthrough
	case cc.UnaryExpressionSizeofType, cc.UnaryExpressionAlignofType:
		if c.hasOdd(wordsOf(n)) {
			return constant{kind: cc.ULong}
		}
		return c.ccs(n)
	}
	if n.CastExpression == nil {
		return constant{}
	}
	v := c.evaluate(n.CastExpression)
	if v.kind == cc.InvalidKind {
		return v
	}
	switch n.Case {
	case cc.UnaryExpressionPlus:
		return v.promoted()
	case cc.UnaryExpressionMinus:
		v = v.promoted()
		return calculate("-", inKind(0, v.kind), v)
	case cc.UnaryExpressionCpl:
		v = v.promoted()
		return calculate("^", inKind(-1, cc.LongLong).to(v.kind), v)
	case cc.UnaryExpressionNot:
		return compare("==", v, inKind(0, v.kind))
	}
	return constant{}
}

func (c *constants) cast(n *cc.CastExpression) constant {
	if n.Case == cc.CastExpressionUnary {
		return c.evaluate(n.UnaryExpression)
	}
	kind, ok := c.integerKind(n.TypeName.Type())
	if !ok {
		return constant{}
	}
	v := c.evaluate(n.CastExpression)
	if v.kind == cc.InvalidKind && !c.hasOdd(wordsOf(n)) { // a floating-point number or an address
		return c.ccs(n).to(kind)
	}
	return v.to(kind)
}

func (c *constants) conditional(n *cc.ConditionalExpression) constant {
	condition, then, otherwise := c.evaluate(n.LogicalOrExpression), c.evaluate(n.ExpressionList), c.evaluate(n.ConditionalExpression)
	if condition.kind == cc.InvalidKind || then.kind == cc.InvalidKind || otherwise.kind == cc.InvalidKind {
		return constant{}
	}
	then, otherwise = alike(then, otherwise)
	switch {
	case !condition.known:
		return constant{kind: then.kind}
	case condition.value != 0:
		return then
	}
	return otherwise
}

// operands returns the parts of an operation with two operands. For any other
// expression, left is nil.
func operands(n cc.ExpressionNode) (left cc.ExpressionNode, operator cc.Token, right cc.ExpressionNode) {
	switch n := n.(type) {
	case *cc.LogicalOrExpression:
		return n.LogicalOrExpression, n.Token, n.LogicalAndExpression
	case *cc.LogicalAndExpression:
		return n.LogicalAndExpression, n.Token, n.InclusiveOrExpression
	case *cc.InclusiveOrExpression:
		return n.InclusiveOrExpression, n.Token, n.ExclusiveOrExpression
	case *cc.ExclusiveOrExpression:
		return n.ExclusiveOrExpression, n.Token, n.AndExpression
	case *cc.AndExpression:
		return n.AndExpression, n.Token, n.EqualityExpression
	case *cc.EqualityExpression:
		return n.EqualityExpression, n.Token, n.RelationalExpression
	case *cc.RelationalExpression:
		return n.RelationalExpression, n.Token, n.ShiftExpression
	case *cc.ShiftExpression:
		return n.ShiftExpression, n.Token, n.AdditiveExpression
	case *cc.AdditiveExpression:
		return n.AdditiveExpression, n.Token, n.MultiplicativeExpression
	case *cc.MultiplicativeExpression:
		return n.MultiplicativeExpression, n.Token, n.CastExpression
	}
	return nil, cc.Token{}, nil
}

func (c *constants) binary(n cc.ExpressionNode) constant {
	left, operator, right := operands(n)
	if left == nil || right == nil {
		return constant{}
	}
	a, b := c.evaluate(left), c.evaluate(right)
	if a.kind == cc.InvalidKind || b.kind == cc.InvalidKind {
		return constant{}
	}
	switch op := operator.SrcStr(); op {
	case "&&", "||":
		decides := op == "||" // the value of an operand that decides the result alone
		switch {
		case a.known && (a.value != 0) == decides, b.known && a.known && (b.value != 0) == decides:
			return truth(decides)
		case a.known && b.known:
			return truth(!decides)
		}
		return constant{kind: cc.Int}
	case "<<", ">>":
		return shift(op, a, b)
	case "==", "!=", "<", "<=", ">", ">=":
		a, b = alike(a, b)
		return compare(op, a, b)
	default:
		a, b = alike(a, b)
		return calculate(op, a, b)
	}
}
