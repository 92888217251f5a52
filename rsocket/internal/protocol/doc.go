// Package protocol is the rsocket protocol of librdmacm as a state machine. It does no I/O.
package protocol
