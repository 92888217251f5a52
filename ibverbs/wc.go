// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
)

// WC is a work completion; see ibv_poll_cq(3). Its methods convert the fields
// from C's form. A field that the queue was not made with (see CQConfig.Fields)
// is 0 or false. In a failed completion, only ID, Status, VendorError and QPNum
// are valid.
type WC struct{ raw datapath.WC }

// ID returns the ID of the request.
func (wc *WC) ID() uint64 { return wc.raw.WrId }

// Status returns whether and how the request failed.
func (wc *WC) Status() WCStatus { return WCStatus(wc.raw.Status) }

// Opcode returns the kind of operation that completed.
func (wc *WC) Opcode() WCOpcode { return wc.raw.Opcode }

// ByteLen returns the number of bytes received, or transferred by an RDMA read.
func (wc *WC) ByteLen() int { return int(wc.raw.ByteLen) }

// Imm returns the immediate data of a receive in the host's byte order, and
// whether there was any.
func (wc *WC) Imm() (uint32, bool) {
	if wc.raw.WcFlags&libibverbs.IBV_WC_WITH_IMM == 0 {
		return 0, false
	}
	return wc.raw.ImmData().Host(), true
}

// QPNum returns the number of the local queue pair.
func (wc *WC) QPNum() uint32 { return wc.raw.QpNum }

// InvalidatedRKey returns the remote key (RKey) of this end's memory that the
// peer's message invalidated, and whether there was one.
func (wc *WC) InvalidatedRKey() (uint32, bool) {
	if wc.raw.WcFlags&libibverbs.IBV_WC_WITH_INV == 0 {
		return 0, false
	}
	return *wc.raw.InvalidatedRkey(), true
}

// Flags returns the flags of the completion.
func (wc *WC) Flags() WCFlags { return wc.raw.WcFlags }

// HasGRH reports whether the first 40 bytes of a received datagram's memory
// contain a global route header, or, on RoCE v2, the IP header.
func (wc *WC) HasGRH() bool { return wc.raw.WcFlags&libibverbs.IBV_WC_GRH != 0 }

// SLID returns the local identifier (LID) of a datagram's sender, on
// InfiniBand. It has more than 16 bits if the device has longer LIDs and the
// queue was made with WCWithSLID.
func (wc *WC) SLID() uint32 { return max(wc.raw.SLID, uint32(wc.raw.Slid)) }

// SL returns the service level of a datagram.
func (wc *WC) SL() uint8 { return wc.raw.Sl }

// PKeyIndex returns the index of a datagram's partition key in the port's
// table, for queue pair 1. It is not available with CQConfig.Fields.
func (wc *WC) PKeyIndex() uint16 { return wc.raw.PkeyIndex }

// DLIDPathBits returns the low bits of the LID that a datagram was sent to.
func (wc *WC) DLIDPathBits() uint8 { return wc.raw.DlidPathBits }

// SrcQPNum returns the number of the sender's queue pair, for datagrams.
func (wc *WC) SrcQPNum() uint32 { return wc.raw.SrcQp }

// VendorError returns the device's own code for a failure.
func (wc *WC) VendorError() uint32 { return wc.raw.VendorErr }

// Timestamp returns when the request completed, in ticks of the device's clock;
// see DeviceAttr.ClockDuration. It needs WCWithTimestamp.
func (wc *WC) Timestamp() uint64 { return wc.raw.Timestamp }

// Time returns when the request completed, or the zero Time on a queue without
// WCWithWallclock.
func (wc *WC) Time() time.Time {
	if wc.raw.Wallclock == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(wc.raw.Wallclock))
}

// CVLAN returns the VLAN tag of a received packet. It needs WCWithCVLAN.
func (wc *WC) CVLAN() uint16 { return wc.raw.CVLAN }

// FlowTag returns the tag of the flow of a received packet. It needs
// WCWithFlowTag.
func (wc *WC) FlowTag() uint32 { return wc.raw.FlowTag }

// TMInfo returns the tag of a received message and the Context of the
// tag.Header that the sender put before it. It needs WCWithTMInfo.
func (wc *WC) TMInfo() (tag uint64, data uint32) { return wc.raw.Tag, wc.raw.TagData }

// Err returns nil if the request succeeded, and a *WCError otherwise.
func (wc *WC) Err() error {
	if wc.raw.Status == libibverbs.IBV_WC_SUCCESS {
		return nil
	}
	return &WCError{Status: wc.Status(), ID: wc.raw.WrId, QPNum: wc.raw.QpNum, VendorError: wc.raw.VendorErr}
}

// WCOpcode says which kind of operation completed.
type WCOpcode = libibverbs.WcOpcode

// The opcodes of completions.
const (
	WCSend        WCOpcode = libibverbs.IBV_WC_SEND
	WCWrite       WCOpcode = libibverbs.IBV_WC_RDMA_WRITE
	WCRead        WCOpcode = libibverbs.IBV_WC_RDMA_READ
	WCCompareSwap WCOpcode = libibverbs.IBV_WC_COMP_SWAP
	WCFetchAdd    WCOpcode = libibverbs.IBV_WC_FETCH_ADD
	WCBindMW      WCOpcode = libibverbs.IBV_WC_BIND_MW
	WCLocalInv    WCOpcode = libibverbs.IBV_WC_LOCAL_INV
	WCTSO         WCOpcode = libibverbs.IBV_WC_TSO
	WCFlush       WCOpcode = libibverbs.IBV_WC_FLUSH
	WCAtomicWrite WCOpcode = libibverbs.IBV_WC_ATOMIC_WRITE
	WCRecv        WCOpcode = libibverbs.IBV_WC_RECV
	WCRecvImm     WCOpcode = libibverbs.IBV_WC_RECV_RDMA_WITH_IMM // receive taken by a write with immediate data

	// Only for a shared receive queue with a tag list.
	WCTagAdd    WCOpcode = libibverbs.IBV_WC_TM_ADD
	WCTagDelete WCOpcode = libibverbs.IBV_WC_TM_DEL
	WCTagSync   WCOpcode = libibverbs.IBV_WC_TM_SYNC
	WCTagRecv   WCOpcode = libibverbs.IBV_WC_TM_RECV   // message with a tag; see WCFlagTagMatched
	WCNoTagRecv WCOpcode = libibverbs.IBV_WC_TM_NO_TAG // message without a tag
)

// WCFlags say what a completion contains.
type WCFlags = libibverbs.WcFlags

// The flags of completions. [WC.Imm], [WC.InvalidatedRKey] and [WC.HasGRH] read
// the first three.
const (
	WCFlagImm          WCFlags = libibverbs.IBV_WC_WITH_IMM
	WCFlagInvalidated  WCFlags = libibverbs.IBV_WC_WITH_INV
	WCFlagGRH          WCFlags = libibverbs.IBV_WC_GRH
	WCFlagIPChecksumOK WCFlags = libibverbs.IBV_WC_IP_CSUM_OK    // the checksum of a received IP packet is correct
	WCFlagTagSync      WCFlags = libibverbs.IBV_WC_TM_SYNC_REQ   // the device asks for tag.Batch.Sync
	WCFlagTagMatched   WCFlags = libibverbs.IBV_WC_TM_MATCH      // the message matched a receive of the tag list; the completion has that receive's ID
	WCFlagTagData      WCFlags = libibverbs.IBV_WC_TM_DATA_VALID // the message is in the memory of that receive
)

// WCFields select the fields that completions have; see ibv_create_cq_ex(3).
type WCFields = libibverbs.CreateCqWcFlags

// The fields that completions can have in addition to ID, status, opcode, flags
// and vendor error.
const (
	WCWithByteLen      WCFields = libibverbs.IBV_WC_EX_WITH_BYTE_LEN
	WCWithImm          WCFields = libibverbs.IBV_WC_EX_WITH_IMM // immediate data and invalidated keys
	WCWithQPNum        WCFields = libibverbs.IBV_WC_EX_WITH_QP_NUM
	WCWithSrcQPNum     WCFields = libibverbs.IBV_WC_EX_WITH_SRC_QP
	WCWithSLID         WCFields = libibverbs.IBV_WC_EX_WITH_SLID
	WCWithSL           WCFields = libibverbs.IBV_WC_EX_WITH_SL
	WCWithDLIDPathBits WCFields = libibverbs.IBV_WC_EX_WITH_DLID_PATH_BITS
	WCWithTimestamp    WCFields = libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
	WCWithCVLAN        WCFields = libibverbs.IBV_WC_EX_WITH_CVLAN
	WCWithFlowTag      WCFields = libibverbs.IBV_WC_EX_WITH_FLOW_TAG
	WCWithTMInfo       WCFields = libibverbs.IBV_WC_EX_WITH_TM_INFO
	WCWithWallclock    WCFields = libibverbs.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK

	// WCStandard holds the fields of a queue without CQConfig.Fields.
	WCStandard = WCWithByteLen | WCWithImm | WCWithQPNum | WCWithSrcQPNum | WCWithSLID | WCWithSL | WCWithDLIDPathBits
)

// WCError reports a failed work request. It matches its Status.
type WCError struct {
	Status      WCStatus
	ID          uint64 // ID of the request
	QPNum       uint32 // number of the local queue pair
	VendorError uint32 // the device's own code
}

// Error names the request, the queue pair and the status, and adds the status's
// Hint.
func (e *WCError) Error() string {
	s := fmt.Sprintf("work request %d on QP %d: %v", e.ID, e.QPNum, e.Status)
	if e.VendorError != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.VendorError)
	}
	if hint := e.Status.Hint(); hint != "" {
		s += ": " + hint
	}
	return s
}

// Unwrap returns the status, which is an error value.
func (e *WCError) Unwrap() error { return e.Status }

// Class says where to look for the cause.
func (e *WCError) Class() WCClass { return e.Status.Class() }

// WCStatus says how a work request ended. Each status is an error value for
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
	WCTagMatching           WCStatus = WCStatus(libibverbs.IBV_WC_TM_ERR)             // such as deleting a receive that a message has taken
	WCTagMatchingRendezvous WCStatus = WCStatus(libibverbs.IBV_WC_TM_RNDV_INCOMPLETE) // the device cannot read the data, so the program must
)

// String returns C's text for the status, that of ibv_wc_status_str, and the
// number of a status without one.
func (s WCStatus) String() string { return libibverbs.WcStatus(s).String() }

// Error returns what String returns.
func (s WCStatus) Error() string { return s.String() }

// WCClass groups statuses by where to look for the cause.
type WCClass int

// The classes of statuses.
const (
	WCClassSuccess          WCClass = iota
	WCClassLocalProgramming         // the request itself is wrong
	WCClassLocalResource            // memory or state on this side
	WCClassRemote                   // the peer refused the request
	WCClassTransport                // the peer did not answer
	WCClassFlushed                  // the request was not tried: the QP was in the error state
	WCClassOther
)

// String returns the name of the class.
func (c WCClass) String() string {
	names := [...]string{
		"success", "local programming", "local resource", "remote", "transport", "flushed", "other",
	}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprintf("WCClass(%d)", int(c))
	}
	return names[c]
}

// Class returns the class of the status.
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

// Hint says in one line what usually causes the status. It returns "" if that
// is unknown.
func (s WCStatus) Hint() string {
	switch s {
	case WCLocalLength:
		return "a message was longer than the posted receive, or than the device allows"
	case WCLocalQPOperation:
		return "the request does not fit the QP or its receive, or a segment's memory region is closed or of another protection domain; on iWARP, the end that accepted the connection may also have sent before the first message of its peer"
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
