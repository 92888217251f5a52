package rdmacm

import (
	"fmt"
	"syscall"
)

// RejectedError is a connection that the peer, or its system, refused. It is
// syscall.ECONNREFUSED.
type RejectedError struct {
	// Reason is the InfiniBand specification's number; ReasonConsumer means
	// that the peer's program refused. On iWARP it is a negative errno. For
	// datagrams the specification has other numbers; here they are those of
	// connections that mean the same.
	Reason int
	// PrivateData is what the peer's program gave as explanation, then zeros
	// up to the transport's maximum.
	PrivateData []byte
}

// Reasons for a rejection.
const (
	ReasonNoQP         = 1
	ReasonNoResources  = 3
	ReasonNoListener   = 8  // nobody listens on the port
	ReasonStale        = 10 // the peer still has an older connection of ours
	ReasonConsumer     = 28 // the peer's program refused
	ReasonVendorOption = 35 // the enhancements asked for are refused; see ID.RejectECE
)

func (e *RejectedError) Error() string {
	if e.Reason < 0 {
		return "connection rejected: " + syscall.Errno(-e.Reason).Error()
	}
	text, ok := reasons[e.Reason]
	if !ok {
		return fmt.Sprintf("connection rejected: reason %d", e.Reason)
	}
	return "connection rejected: " + text
}

// Unwrap makes errors.Is work with syscall.ECONNREFUSED, and with the errno
// that is the reason on iWARP.
func (e *RejectedError) Unwrap() []error {
	if e.Reason < 0 {
		return []error{syscall.ECONNREFUSED, syscall.Errno(-e.Reason)}
	}
	return []error{syscall.ECONNREFUSED}
}

var reasons = map[int]string{
	ReasonNoQP:         "no queue pair available",
	ReasonNoResources:  "no resources",
	4:                  "timeout",
	5:                  "unsupported request",
	6:                  "invalid communication ID",
	7:                  "invalid communication instance",
	ReasonNoListener:   "nobody listens on the port",
	9:                  "invalid transport service type",
	ReasonStale:        "stale connection",
	12:                 "invalid GID",
	13:                 "invalid LID",
	14:                 "invalid service level",
	15:                 "invalid traffic class",
	16:                 "invalid hop limit",
	17:                 "invalid packet rate",
	24:                 "redirected to another CM",
	25:                 "redirected to another port",
	26:                 "path MTU not supported",
	27:                 "not enough responder resources",
	ReasonConsumer:     "refused by the peer's program",
	29:                 "RNR retry count not supported",
	30:                 "duplicate local communication ID",
	31:                 "unsupported class version",
	32:                 "invalid flow label",
	ReasonVendorOption: "vendor option not supported",
}
