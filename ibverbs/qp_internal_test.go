// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

var qpTypes = []QPType{QPTypeRC, QPTypeUC, QPTypeUD, QPTypeRawPacket, QPTypeXRCSend, QPTypeXRCRecv}

// forEachTransition calls f for every two states and every type.
func forEachTransition(f func(t QPType, from, to QPState)) {
	for _, t := range qpTypes {
		for from := QPStateReset; from <= QPStateError; from++ {
			for to := QPStateReset; to <= QPStateError; to++ {
				f(t, from, to)
			}
		}
	}
}

// allBits are the attributes that have names, but for the state.
func allBits() (bits []QPAttrMask) {
	for i, name := range attrNames {
		if bit := QPAttrMask(1) << i; name != "" && bit != QPAttrState {
			bits = append(bits, bit)
		}
	}
	return bits
}

// The golden file has what the specification and the kernel say.
func TestTransitionTable(t *testing.T) {
	var text strings.Builder
	forEachTransition(func(qpType QPType, from, to QPState) {
		e := checkTransition(qpType, from, to, ^QPAttrMask(0))
		fmt.Fprintf(&text, "%s %s -> %s:", strings.TrimPrefix(qpType.String(), "IBV_QPT_"), stateName(from), stateName(to))
		if e.NotAllowed == 0 {
			text.WriteString(" none\n")
			return
		}
		var required, optional QPAttrMask
		if e := checkTransition(qpType, from, to, QPAttrState); e != nil {
			required = e.Missing
		}
		for _, bit := range allBits() {
			if required&bit == 0 && bit != QPAttrRateLimit && checkTransition(qpType, from, to, required|bit) == nil {
				optional |= bit
			}
		}
		if required != 0 {
			fmt.Fprintf(&text, " required %s;", names(required))
		}
		if optional != 0 {
			fmt.Fprintf(&text, " optional %s;", names(optional))
		}
		text.WriteString(" ok\n")
	})
	golden.Compare(t, "testdata/transitions.txt", text.String())
}

// Each required attribute is missed, and each one that is too many found, alone
// and together.
func TestTransitionRefusals(t *testing.T) {
	forEachTransition(func(qpType QPType, from, to QPState) {
		if e := checkTransition(qpType, from, to, ^QPAttrMask(0)); e.NotAllowed == 0 {
			for _, bit := range allBits() { // no attribute makes a way where there is none
				require.Equal(t, e, checkTransition(qpType, from, to, QPAttrState|bit))
			}
			return
		}
		a := transitions[transition{from, to}][qpType]
		require.Zero(t, a.required&a.optional)
		require.Nil(t, checkTransition(qpType, from, to, QPAttrState|a.required))
		require.Nil(t, checkTransition(qpType, from, to, a.required|a.optional))
		var missing, extra QPAttrMask
		for _, bit := range allBits() {
			e := checkTransition(qpType, from, to, QPAttrState|a.required^bit)
			switch {
			case a.required&bit != 0:
				missing |= bit
				require.Equal(t, &TransitionError{Type: qpType, From: from, To: to, Missing: bit}, e)
			case a.optional&bit != 0 || bit == QPAttrRateLimit:
				require.Nil(t, e)
			default:
				extra |= bit
				require.Equal(t, &TransitionError{Type: qpType, From: from, To: to, NotAllowed: bit}, e)
			}
		}
		if e := checkTransition(qpType, from, to, QPAttrState|extra); e != nil {
			require.Equal(t, &TransitionError{Type: qpType, From: from, To: to, Missing: missing, NotAllowed: extra}, e)
		}
	})
}

func TestTransitionErrorTexts(t *testing.T) {
	for want, e := range map[string]*TransitionError{
		"ibv_modify_qp (QP 17 of rxe0): RC init -> rtr: missing rq_psn, dest_qp_num; not allowed: timeout": checkTransition(
			QPTypeRC, QPStateInit, QPStateRTR,
			connPath&^(QPAttrDestQPNum|QPAttrRecvPSN)|answers|QPAttrTimeout),
		"ibv_modify_qp (QP 17 of rxe0): UD reset -> init: missing qkey": checkTransition(
			QPTypeUD, QPStateReset, QPStateInit, QPAttrPort|QPAttrPKeyIndex),
		"ibv_modify_qp (QP 17 of rxe0): RAW_PACKET reset -> init: not allowed: qkey": checkTransition(
			QPTypeRawPacket, QPStateReset, QPStateInit, QPAttrPort|QPAttrQKey),
		"ibv_modify_qp (QP 17 of rxe0): XRC_SEND error -> error: not allowed: 0x200000": checkTransition(
			QPTypeXRCSend, QPStateError, QPStateError, QPAttrState|1<<21),
		"ibv_modify_qp (QP 17 of rxe0): RC reset -> rtr: no such transition; the states after reset are reset, init, error": checkTransition(
			QPTypeRC, QPStateReset, QPStateRTR, QPAttrState),
	} {
		e.QP = "QP 17 of rxe0"
		require.EqualError(t, e, want)
		require.ErrorIs(t, e, syscall.EINVAL)
	}
}

// fakeQP returns a queue pair of a device that is not there.
func fakeQP(qpType QPType, transport libibverbs.TransportType) *QP {
	c := &libibverbs.Context{Device: &libibverbs.Device{TransportType: transport}}
	qp := &QP{device: &Device{raw: c}, raw: &libibverbs.Qp{Context: c}, typ: qpType}
	qp.object.InitUnlisted("fake QP")
	return qp
}

func TestRefusal(t *testing.T) {
	rc := fakeQP(QPTypeRC, libibverbs.IBV_TRANSPORT_IB)
	require.Equal(t, QPStateReset, rc.noted())
	rc.raw.State = QPStateSQE
	require.Equal(t, QPStateSQE, rc.noted())

	toRTR := &libibverbs.QpAttr{QpState: QPStateRTR}
	e := rc.refusal(QPStateReset, toRTR, QPAttrState)
	require.Equal(t, &TransitionError{QP: "fake QP", Type: QPTypeRC, From: QPStateReset, To: QPStateRTR}, e)
	e = rc.refusal(QPStateInit, toRTR, QPAttrState)
	require.Equal(t, connPath|answers, e.Missing)

	// Without a state the attributes change within the one that is.
	e = rc.refusal(QPStateInit, toRTR, QPAttrPort)
	require.Nil(t, e)
	e = rc.refusal(QPStateRTS, toRTR, QPAttrPort)
	require.Equal(t, &TransitionError{QP: "fake QP", Type: QPTypeRC, From: QPStateRTS, To: QPStateRTS, NotAllowed: QPAttrPort}, e)

	// The caller's word about the current state counts.
	resume := &libibverbs.QpAttr{QpState: QPStateRTS, CurQpState: QPStateSQD}
	require.Nil(t, rc.refusal(QPStateError, resume, QPAttrState|QPAttrCurState))

	iwarp := fakeQP(QPTypeRC, libibverbs.IBV_TRANSPORT_IWARP)
	require.Nil(t, iwarp.refusal(QPStateReset, toRTR, QPAttrState), "has other states")
}

func TestModifyOfBadAttributes(t *testing.T) {
	qp := fakeQP(QPTypeRC, libibverbs.IBV_TRANSPORT_IB)
	err := qp.ToInit(InitAttr{Port: 256})
	require.EqualError(t, err, "ibv_modify_qp (fake QP): port is 256, not from 1 to 255")
	require.ErrorIs(t, err, syscall.EINVAL)
	err = qp.ToRTS(RTSAttr{Timeout: -1})
	require.EqualError(t, err, "ibv_modify_qp (fake QP): timeout is -1ns, not positive")
	var transitionErr *TransitionError
	require.False(t, errors.As(err, &transitionErr))
}
