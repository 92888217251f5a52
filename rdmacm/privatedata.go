package rdmacm

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// privateDataLimits is how many bytes of private data a message can carry on
// InfiniBand and RoCE, where they are parts of fixed size of its packets. C
// says no more than EINVAL when there are more.
type privateDataLimits struct {
	message   string
	connected int // of a connection
	datagram  int // of an id for datagrams
}

// The requests of ids with IP addresses have 36 bytes less than the packet's
// 92 and 216, for the addresses.
var (
	limitsOfRequest = privateDataLimits{"connection request", 56, 180}
	limitsOfReply   = privateDataLimits{"acceptance", 196, 136}
	limitsOfReject  = privateDataLimits{"rejection", 148, 136}
)

const addressHeader = 36

// checkPrivateData refuses private data that is too long for the id's device.
// The id must have one.
func (id *ID) checkPrivateData(limits privateDataLimits, data []byte) error {
	limit := limits.connected
	if id.isDatagram() {
		limit = limits.datagram
	}
	if id.ps == PortSpaceIB && limits == limitsOfRequest {
		limit += addressHeader
	}
	if id.verbs().Device.TransportType != libibverbs.IBV_TRANSPORT_IB {
		limit = math.MaxUint8 // iWARP has no fixed size; C's type ends here
	}
	if len(data) > limit {
		return cerr.Invalid("private data of %d bytes, where this device's %s carries up to %d",
			len(data), limits.message, limit)
	}
	return nil
}
