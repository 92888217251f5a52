// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// inline recognises, in the body of a static inline function, a call through an
// operation table. It recognises two forms:
//
//	return qp->context->ops.post_send(qp, wr, bad_wr);
//
//	vctx = verbs_get_ctx_op(pd->context, advise_mr);
//	if (!vctx)
//		return EOPNOTSUPP;   // or: errno = EOPNOTSUPP; return NULL;
//	return vctx->advise_mr(pd, advice, flags, sg_list, num_sge);
//
// All parameters must be passed on, in order. For any other body, inline
// returns a result without Call.
func inline(f *cc.FunctionDefinition, params []string) *api.Inline {
	var body shape
	for l := f.CompoundStatement.BlockItemList; l != nil; l = l.BlockItemList {
		body.item(l.BlockItem)
	}
	own := &api.Inline{Body: digest(wordsOf(f.CompoundStatement))}
	if body.other || !slices.Equal(body.args, params) {
		return own
	}
	if strings.HasPrefix(body.call, "vctx->") {
		if body.guard == "" || !body.refuses || body.call != "vctx->"+body.op {
			return own
		}
		return &api.Inline{Call: body.call, Guard: body.guard, Body: own.Body}
	}
	if body.guard != "" || body.refuses || !strings.Contains(body.call, "->") {
		return own
	}
	return &api.Inline{Call: body.call, Body: own.Body}
}

// digest returns a hash of words as a short text.
func digest(words []string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// shape records the statements of a body, as far as they belong to the forms
// that inline recognises.
type shape struct {
	guard, op string   // arguments of verbs_get_ctx_op
	refuses   bool     // whether the body returns EOPNOTSUPP if vctx is NULL
	call      string   // function that the body calls
	args      []string // names of the call's arguments; "" for one that is not a name
	other     bool     // whether the body has any other statement
}

func (b *shape) item(n *cc.BlockItem) {
	switch {
	case n.Declaration != nil:
		for l := n.Declaration.InitDeclaratorList; l != nil; l = l.InitDeclaratorList {
			name, init := l.InitDeclarator.Declarator.Name(), l.InitDeclarator.Initializer
			if init != nil && name != "__func__" { // C declares __func__ in every function
				b.setContext(name, init.AssignmentExpression)
			}
		}
	case n.Statement != nil:
		b.statement(n.Statement)
	default:
		b.other = true
	}
}

func (b *shape) statement(n *cc.Statement) {
	switch {
	case n.SelectionStatement != nil:
		s := n.SelectionStatement
		condition := strings.ReplaceAll(cc.NodeSource(s.ExpressionList), " ", "")
		if s.Case != cc.SelectionStatementIf || condition != "!vctx" || !refusal(s.Statement) {
			b.other = true
			return
		}
		b.refuses = true
	case n.JumpStatement != nil && n.JumpStatement.Case == cc.JumpStatementReturn:
		b.called(n.JumpStatement.ExpressionList)
	case n.ExpressionStatement != nil:
		if a, ok := n.ExpressionStatement.ExpressionList.(*cc.AssignmentExpression); ok {
			b.setContext(path(a.UnaryExpression), a.AssignmentExpression)
			return
		}
		b.called(n.ExpressionStatement.ExpressionList)
	default:
		b.other = true
	}
}

// refusal reports whether the statement n only fails with EOPNOTSUPP.
func refusal(n *cc.Statement) bool {
	text := strings.Join(strings.Fields(cc.NodeSource(n)), "")
	return text == "return95;" ||
		text == "{(*__errno_location())=95;return((void*)0);}"
}

// setContext records the assignment vctx = verbs_get_ctx_op(guard, op), whose
// right side the preprocessor has expanded.
func (b *shape) setContext(name string, value cc.ExpressionNode) {
	text := strings.ReplaceAll(cc.NodeSource(value), " ", "")
	_, after, ok := strings.Cut(text, "=verbs_get_ctx(")
	guard, after, ok2 := strings.Cut(after, ");")
	_, after, ok3 := strings.Cut(after, "||!__vctx->")
	op, after, ok4 := strings.Cut(after, ")?")
	if name != "vctx" || !ok || !ok2 || !ok3 || !ok4 || !strings.HasSuffix(after, ":__vctx;})") {
		b.other = true
		return
	}
	b.guard, b.op = guard, op
}

// called records a call, which must be the only one.
func (b *shape) called(n cc.ExpressionNode) {
	call, ok := n.(*cc.PostfixExpression)
	if !ok || call.Case != cc.PostfixExpressionCall || b.call != "" {
		b.other = true
		return
	}
	b.call = path(call.PostfixExpression)
	for l := call.ArgumentExpressionList; l != nil; l = l.ArgumentExpressionList {
		b.args = append(b.args, path(l.AssignmentExpression))
	}
}

// path returns the text of a chain of member selections from a name, such as
// qp->context->ops.post_send, and "" for any other expression.
func path(n cc.ExpressionNode) string {
	switch n := n.(type) {
	case *cc.PrimaryExpression:
		if n.Case == cc.PrimaryExpressionIdent {
			return n.Token.SrcStr()
		}
	case *cc.PostfixExpression:
		base := path(n.PostfixExpression)
		if base == "" {
			return ""
		}
		switch n.Case {
		case cc.PostfixExpressionSelect:
			return base + "." + n.Token2.SrcStr()
		case cc.PostfixExpressionPSelect:
			return base + "->" + n.Token2.SrcStr()
		}
	}
	return ""
}
