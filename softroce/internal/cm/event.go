// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// An Event is struct rdma_cm_event. Of Conn and UD it has the one that its ID's type of
// queue pair calls for.
type Event struct {
	Type    librdmacm.CmEventType
	ID      *ID // of CONNECT_REQUEST, the new one
	Listen  *ID // of CONNECT_REQUEST, the one that listens
	Status  int // 0, a negative errno, or the peer's reason
	Conn    ConnParam
	UD      UDParam
	ECE     libibverbs.Ece // of CONNECT_REQUEST and CONNECT_RESPONSE: the peer's
	Context any            // of MULTICAST_JOIN and MULTICAST_ERROR: what JoinMulticast was given
	Arg     uint64         // of USER

	owner *ID // whose event it is: ID, or Listen
	group *group
}

// A ConnParam is struct rdma_conn_param. In an event, PrivateData has the length of the
// message's field, whatever the peer gave.
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

// DefaultConnParam returns the parameters that stand for a null pointer in C.
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
