package ibverbs

import (
	"fmt"
	"math/bits"
	"strings"
	"syscall"
)

// TransitionError is a change of a queue pair's attributes that C would refuse:
// there is no way between the states, or the attributes are not those that the
// way needs. It is syscall.EINVAL. Nothing was changed.
type TransitionError struct {
	QP         string // the queue pair's name
	Type       QPType
	From, To   QPState
	Missing    QPAttrMask
	NotAllowed QPAttrMask
}

// Error says which change of which queue pair it is, and names the attributes
// that are missing or too many as C's struct ibv_qp_attr does.
func (e *TransitionError) Error() string {
	s := fmt.Sprintf("ibv_modify_qp (%s): %s %s -> %s: ", e.QP,
		strings.TrimPrefix(e.Type.String(), "IBV_QPT_"), stateName(e.From), stateName(e.To))
	if e.Missing == 0 && e.NotAllowed == 0 {
		return s + "no such transition, from " + stateName(e.From) + " it goes to " + strings.Join(next(e.From), ", ")
	}
	var parts []string
	if e.Missing != 0 {
		parts = append(parts, "missing "+names(e.Missing))
	}
	if e.NotAllowed != 0 {
		parts = append(parts, "not allowed: "+names(e.NotAllowed))
	}
	return s + strings.Join(parts, "; ")
}

// Unwrap makes errors.Is work with EINVAL.
func (e *TransitionError) Unwrap() error { return syscall.EINVAL }

// checkTransition returns nil if the attributes of mask may be changed from
// one state to the other.
func checkTransition(t QPType, from, to QPState, mask QPAttrMask) *TransitionError {
	e := &TransitionError{Type: t, From: from, To: to}
	types, ok := transitions[transition{from, to}]
	if !ok && to != QPStateReset && to != QPStateError {
		return e
	}
	a := types[t]
	e.Missing = a.required &^ mask
	// Kernels differ about the rate limit, so the device decides.
	e.NotAllowed = mask &^ (a.required | a.optional | QPAttrState | QPAttrRateLimit)
	if e.Missing == 0 && e.NotAllowed == 0 {
		return nil
	}
	return e
}

// stateName returns a name such as "rtr".
func stateName(s QPState) string {
	if s == QPStateError {
		return "error"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "IBV_QPS_"))
}

// next returns the states that follow.
func next(from QPState) []string {
	var states []string
	for to := QPStateReset; to <= QPStateError; to++ {
		_, ok := transitions[transition{from, to}]
		if ok || to == QPStateReset || to == QPStateError {
			states = append(states, stateName(to))
		}
	}
	return states
}

// names returns C's names for the attributes.
func names(mask QPAttrMask) string {
	var s []string
	for rest := uint32(mask); rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros32(rest)
		if i < len(attrNames) && attrNames[i] != "" {
			s = append(s, attrNames[i])
		} else {
			s = append(s, fmt.Sprintf("%#x", uint32(1)<<i))
		}
	}
	return strings.Join(s, ", ")
}
