package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// HasWR reports whether requests can be posted through the ibv_wr functions.
func HasWR(qp *QP) bool { return qp.ex != nil }

// RequiredAttrs and CheckTransition give what the tables say.
func RequiredAttrs(t QPType, from, to QPState) QPAttrMask {
	return transitions[transition{from, to}][t].required
}

func CheckTransition(t QPType, from, to QPState, mask QPAttrMask) error {
	if e := checkTransition(t, from, to, mask); e != nil {
		return e
	}
	return nil
}

// Raw returns the attributes as C takes them.
func (a QPAttr) Raw(mask QPAttrMask) (libibverbs.QpAttr, error) { return a.raw(mask) }
