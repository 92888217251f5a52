package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// WCStatus says how a work request ended. Each is an error value for
// errors.Is; WCSuccess is not an error.
type WCStatus libibverbs.WcStatus

// The statuses of completions.
const (
	WCSuccess               WCStatus = WCStatus(libibverbs.IBV_WC_SUCCESS)
	WCLocalLength           WCStatus = WCStatus(libibverbs.IBV_WC_LOC_LEN_ERR)
	WCLocalQPOperation      WCStatus = WCStatus(libibverbs.IBV_WC_LOC_QP_OP_ERR)
	WCLocalEECOperation     WCStatus = WCStatus(libibverbs.IBV_WC_LOC_EEC_OP_ERR)
	WCLocalProtection       WCStatus = WCStatus(libibverbs.IBV_WC_LOC_PROT_ERR)
	WCFlushed               WCStatus = WCStatus(libibverbs.IBV_WC_WR_FLUSH_ERR)
	WCMemoryWindowBind      WCStatus = WCStatus(libibverbs.IBV_WC_MW_BIND_ERR)
	WCBadResponse           WCStatus = WCStatus(libibverbs.IBV_WC_BAD_RESP_ERR)
	WCLocalAccess           WCStatus = WCStatus(libibverbs.IBV_WC_LOC_ACCESS_ERR)
	WCRemoteInvalidRequest  WCStatus = WCStatus(libibverbs.IBV_WC_REM_INV_REQ_ERR)
	WCRemoteAccess          WCStatus = WCStatus(libibverbs.IBV_WC_REM_ACCESS_ERR)
	WCRemoteOperation       WCStatus = WCStatus(libibverbs.IBV_WC_REM_OP_ERR)
	WCRetryExceeded         WCStatus = WCStatus(libibverbs.IBV_WC_RETRY_EXC_ERR)
	WCRNRRetryExceeded      WCStatus = WCStatus(libibverbs.IBV_WC_RNR_RETRY_EXC_ERR)
	WCLocalRDDViolation     WCStatus = WCStatus(libibverbs.IBV_WC_LOC_RDD_VIOL_ERR)
	WCRemoteInvalidRD       WCStatus = WCStatus(libibverbs.IBV_WC_REM_INV_RD_REQ_ERR)
	WCRemoteAborted         WCStatus = WCStatus(libibverbs.IBV_WC_REM_ABORT_ERR)
	WCInvalidEECN           WCStatus = WCStatus(libibverbs.IBV_WC_INV_EECN_ERR)
	WCInvalidEECState       WCStatus = WCStatus(libibverbs.IBV_WC_INV_EEC_STATE_ERR)
	WCFatal                 WCStatus = WCStatus(libibverbs.IBV_WC_FATAL_ERR)
	WCResponseTimeout       WCStatus = WCStatus(libibverbs.IBV_WC_RESP_TIMEOUT_ERR)
	WCGeneral               WCStatus = WCStatus(libibverbs.IBV_WC_GENERAL_ERR)
	WCTagMatching           WCStatus = WCStatus(libibverbs.IBV_WC_TM_ERR)             // such as a receive to be deleted that a message has taken
	WCTagMatchingRendezvous WCStatus = WCStatus(libibverbs.IBV_WC_TM_RNDV_INCOMPLETE) // the program has to read the data: the device cannot
)

// String returns the text that C has for the status; see
// ibv_wc_status_str(3).
func (s WCStatus) String() string { return libibverbs.WcStatus(s).String() }

// Error returns the same.
func (s WCStatus) Error() string { return s.String() }

// WCClass groups statuses by where the cause is to be looked for.
type WCClass int

// The classes of statuses.
const (
	WCClassSuccess          WCClass = iota
	WCClassLocalProgramming         // the request itself is wrong
	WCClassLocalResource            // memory or state on this side
	WCClassRemote                   // the peer refused the request
	WCClassTransport                // the peer did not answer
	WCClassFlushed                  // not tried: the QP was in the error state
	WCClassOther
)

// String returns the name of the class.
func (c WCClass) String() string {
	names := [...]string{
		"success", "local programming", "local resource", "remote", "transport", "flushed", "other",
	}
	if c < 0 || int(c) >= len(names) {
		return "other"
	}
	return names[c]
}

// Class returns the class of a status.
func (s WCStatus) Class() WCClass {
	switch s {
	case WCSuccess:
		return WCClassSuccess
	case WCLocalLength, WCLocalQPOperation, WCLocalEECOperation, WCMemoryWindowBind,
		WCLocalRDDViolation, WCInvalidEECN, WCInvalidEECState:
		return WCClassLocalProgramming
	case WCLocalProtection, WCLocalAccess, WCFatal:
		return WCClassLocalResource
	case WCBadResponse, WCRemoteInvalidRequest, WCRemoteAccess, WCRemoteOperation,
		WCRemoteInvalidRD, WCRemoteAborted:
		return WCClassRemote
	case WCRetryExceeded, WCRNRRetryExceeded, WCResponseTimeout:
		return WCClassTransport
	case WCFlushed:
		return WCClassFlushed
	}
	return WCClassOther
}

// Hint says in one line what usually causes the status, if that is known.
func (s WCStatus) Hint() string {
	switch s {
	case WCLocalLength:
		return "a message was longer than the posted receive, or than the device allows"
	case WCLocalQPOperation:
		return "the request does not fit the QP or its receive, or a segment's memory region is closed or of another protection domain"
	case WCLocalProtection:
		return "a segment is outside its memory region, or the region is closed, of another protection domain or without the access"
	case WCFlushed:
		return "the QP went into the error state before the request's turn; an earlier completion or the end of the connection is the cause"
	case WCRemoteInvalidRequest:
		return "the peer's QP does not allow this operation, or the message is too long for its receive"
	case WCRemoteAccess:
		return "the remote key, address or length is wrong, or the peer's region does not allow the access"
	case WCRemoteOperation:
		return "the peer could not carry the request out"
	case WCRetryExceeded:
		return "the peer did not answer: it is gone, or packets are lost"
	case WCRNRRetryExceeded:
		return "the peer had no receive posted"
	}
	return ""
}
