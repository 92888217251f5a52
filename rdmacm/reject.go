package rdmacm

import (
	"fmt"
	"syscall"
)

// RejectedError is a connection that the peer, or its system, refused. It is
// syscall.ECONNREFUSED.
type RejectedError struct {
	// Reason is that of connections for datagrams, too, for which the
	// specification has other numbers.
	Reason Reason
	// PrivateData is what the peer's program gave as explanation, then zeros
	// up to the transport's maximum.
	PrivateData []byte
}

// Reason says why a connection was rejected, by the InfiniBand specification's
// number. On iWARP it is a negative errno.
type Reason int

// The reasons that programs meet.
const (
	ReasonNoQP         Reason = 1
	ReasonNoResources  Reason = 3
	ReasonNoListener   Reason = 8  // nobody listens on the port
	ReasonStale        Reason = 10 // the peer still has an older connection of ours
	ReasonConsumer     Reason = 28 // the peer's program refused
	ReasonVendorOption Reason = 35 // the enhancements asked for are refused; see ID.RejectECE
)

// String returns what the reason means, or its number.
func (r Reason) String() string {
	if r < 0 {
		return syscall.Errno(-r).Error()
	}
	if text, ok := reasons[r]; ok {
		return text
	}
	return fmt.Sprintf("reason %d", int(r))
}

func (e *RejectedError) Error() string {
	return "connection rejected: " + e.Reason.String()
}

// Unwrap makes errors.Is work with syscall.ECONNREFUSED, and with the errno
// that is the reason on iWARP.
func (e *RejectedError) Unwrap() []error {
	if e.Reason < 0 {
		return []error{syscall.ECONNREFUSED, syscall.Errno(-e.Reason)}
	}
	return []error{syscall.ECONNREFUSED}
}

var reasons = map[Reason]string{
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
