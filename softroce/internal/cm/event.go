// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// Event is struct rdma_cm_event. UD is set for IDs with datagram queue pairs,
// and Conn for all others.
type Event struct {
	Type    librdmacm.CmEventType
	ID      *ID // for CONNECT_REQUEST, the new ID
	Listen  *ID // for CONNECT_REQUEST, the listening ID
	Status  int // 0, a negative errno, or the reason in the peer's rejection
	Conn    ConnParam
	UD      UDParam
	ECE     libibverbs.Ece // the peer's ECE options, for CONNECT_REQUEST and CONNECT_RESPONSE
	Context any            // argument of JoinMulticast, for MULTICAST_JOIN and MULTICAST_ERROR
	Arg     uint64         // argument of WriteEvent, for USER

	owner *ID    // ID for which the event is queued: Listen if set, otherwise ID
	group *group // multicast group of the event, or nil
}

// ConnParam is struct rdma_conn_param. In an event, PrivateData is the whole
// field of the message. So it may be longer than the private data that the
// peer's program has passed.
type ConnParam struct {
	PrivateData        []byte
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
	QPNum              uint32
}

// DefaultConnParam returns the parameters that a null pointer in C stands for.
func DefaultConnParam() ConnParam {
	return ConnParam{
		ResponderResources: librdmacm.RDMA_MAX_RESP_RES,
		InitiatorDepth:     librdmacm.RDMA_MAX_INIT_DEPTH,
		RetryCount:         7,
		RNRRetryCount:      7,
	}
}

// UDParam is struct rdma_ud_param.
type UDParam struct {
	PrivateData []byte
	AhAttr      libibverbs.AhAttr
	QPNum       uint32
	QKey        uint32
}
