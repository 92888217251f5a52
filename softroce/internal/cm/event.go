// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// An Event is struct rdma_cm_event. UD is set for IDs with datagram queue
// pairs, Conn for all others.
type Event struct {
	Type    librdmacm.CmEventType
	ID      *ID // for CONNECT_REQUEST, the new ID
	Listen  *ID // for CONNECT_REQUEST, the listening ID
	Status  int // 0, a negative errno, or the peer's reason
	Conn    ConnParam
	UD      UDParam
	ECE     libibverbs.Ece // the peer's, for CONNECT_REQUEST and CONNECT_RESPONSE
	Context any            // JoinMulticast's, for MULTICAST_JOIN and MULTICAST_ERROR
	Arg     uint64         // for USER

	owner *ID // the ID to which the event belongs: ID, or Listen
	group *group
}

// A ConnParam is struct rdma_conn_param. In an event, PrivateData has the
// length of the message's field, which may exceed what the peer passed.
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

// DefaultConnParam returns the parameters that a null pointer stands for in C.
func DefaultConnParam() ConnParam {
	return ConnParam{
		ResponderResources: librdmacm.RDMA_MAX_RESP_RES,
		InitiatorDepth:     librdmacm.RDMA_MAX_INIT_DEPTH,
		RetryCount:         7,
		RNRRetryCount:      7,
	}
}

// A UDParam is struct rdma_ud_param.
type UDParam struct {
	PrivateData []byte
	AhAttr      libibverbs.AhAttr
	QPNum       uint32
	QKey        uint32
}
