// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"
	"fmt"
	"time"
)

// madSize is the length of a management datagram in bytes.
const madSize = 256

// mad is a management datagram.
type mad [madSize]byte

// The classes of datagrams.
const (
	classLIDRouted = 0x01 // subnet management, to a LID
	classDirected  = 0x81 // subnet management, over a directed route
	classPerf      = 0x04 // performance management
)

// classes lists the classes of a Client's requests.
var classes = [...]uint8{classLIDRouted, classDirected, classPerf}

// The methods.
const (
	methodGet      = 0x01
	methodSet      = 0x02
	methodResponse = 0x81 // response to a Get or a Set
)

// attributeID identifies the attribute that a request asks for. Subnet
// management and performance management use the same numbers for different
// attributes.
type attributeID struct {
	name   string
	number uint16
	perf   bool // whether the attribute is one of performance management rather than subnet management
}

var (
	attrNodeDescription = attributeID{"NodeDescription", 0x10, false}
	attrNodeInfo        = attributeID{"NodeInfo", 0x11, false}
	attrSwitchInfo      = attributeID{"SwitchInfo", 0x12, false}
	attrPortInfo        = attributeID{"PortInfo", 0x15, false}

	attrClassPortInfo = attributeID{"ClassPortInfo", 0x01, true}
	attrCounters      = attributeID{"PortCounters", 0x12, true}
	attrExtCounters   = attributeID{"PortCountersExtended", 0x1d, true}
)

// Status is the error with which a node has answered a request.
type Status uint16

// The errors of all classes.
const (
	StatusBusy              Status = 0x01 // the node has discarded the request, and may take it later
	StatusRedirect          Status = 0x02 // another port answers these requests
	StatusBadVersion        Status = 0x04 // the node does not have this version of the class
	StatusUnsupportedMethod Status = 0x08
	StatusUnsupported       Status = 0x0c // the node does not have this attribute, or not with this method
	StatusInvalidValue      Status = 0x1c // a value in the request is invalid, such as a port that the node does not have
)

// statusMask has the bits of a status that are the same in all classes.
const statusMask Status = 0x1f

var statusTexts = map[Status]string{
	StatusBusy:              "the node is busy",
	StatusRedirect:          "another port answers these requests",
	StatusBadVersion:        "the node does not support this version of the class",
	StatusUnsupportedMethod: "the node does not support the method",
	StatusUnsupported:       "the node does not support the attribute",
	StatusInvalidValue:      "a value in the request is invalid, such as the number of the port",
}

// Error returns what the status means, and its number.
func (s Status) Error() string {
	text := statusTexts[s&statusMask]
	if text == "" {
		text = "the node answered with an error"
	}
	return fmt.Sprintf("%s (status %#02x)", text, uint16(s))
}

// Is reports whether target is the same error. It ignores the bits of a status
// whose meaning depends on the class.
func (s Status) Is(target error) bool {
	other, ok := target.(Status)
	return ok && s&statusMask == other&statusMask
}

// request is a request to a node, before it is marshaled.
type request struct {
	attribute attributeID
	to        Address
	modifier  uint32
	set       bool
	data      attribute // data of a request of performance management
	mkey      uint64
}

// class returns the class of the request's datagram.
func (r *request) class() uint8 {
	switch {
	case r.attribute.perf:
		return classPerf
	case r.to.lid == 0:
		return classDirected
	}
	return classLIDRouted
}

// The byte offsets of a datagram's parts.
const (
	offClass     = 1
	offMethod    = 3
	offStatus    = 4
	offHopCount  = 7
	offTID       = 8
	offAttribute = 16
	offModifier  = 20
	offMKey      = 24
	offDRSLID    = 32
	offDRDLID    = 34
	offData      = 64
	offPath      = 128
)

// directionBit is set in the status of an answer that came over a directed
// route.
const directionBit = 0x8000

// marshal returns the datagram of the request. The upper half of a transaction
// ID belongs to the kernel.
func (r *request) marshal(tid uint32) *mad {
	m := &mad{0: 1, offClass: r.class(), 2: 1, offMethod: methodGet}
	if r.set {
		m[offMethod] = methodSet
	}
	binary.BigEndian.PutUint64(m[offTID:], uint64(tid))
	binary.BigEndian.PutUint16(m[offAttribute:], r.attribute.number)
	binary.BigEndian.PutUint32(m[offModifier:], r.modifier)
	if r.attribute.perf {
		copy(m[offData:], r.data[:])
		return m
	}
	binary.BigEndian.PutUint64(m[offMKey:], r.mkey)
	if m[offClass] == classDirected {
		route := r.to.route
		m[offHopCount] = uint8(route.hops)
		binary.BigEndian.PutUint16(m[offDRSLID:], uint16(permissive))
		binary.BigEndian.PutUint16(m[offDRDLID:], uint16(permissive))
		copy(m[offPath+1:], route.path[:])
	}
	return m
}

// tid returns the part of the transaction ID that the sender has chosen.
func (m *mad) tid() uint32 { return binary.BigEndian.Uint32(m[offTID+4:]) }

// status returns the status of a response.
func (m *mad) status() Status {
	s := binary.BigEndian.Uint16(m[offStatus:])
	if m[offClass] == classDirected {
		s &^= directionBit
	}
	return Status(s)
}

// answers reports whether the datagram's header is that of a response to the
// request.
func (m *mad) answers(r *request) bool {
	return m[offMethod] == methodResponse && m[offClass] == r.class() &&
		binary.BigEndian.Uint16(m[offAttribute:]) == r.attribute.number
}

// attribute returns the data of the datagram. In subnet management, the data
// ends after 64 bytes, and the route follows.
func (m *mad) attribute(perf bool) *attribute {
	a := &attribute{}
	copy(a[:], m[offData:])
	if !perf {
		clear(a[smpSize:])
	}
	return a
}

// packet is a datagram that a transport sends or has received, with its
// address.
type packet struct {
	mad     mad
	lid     LID           // LID of the destination of a packet to send, or of the source of a received one
	qp      uint32        // number of the queue pair: 0 or 1
	timeout time.Duration // time to wait for the answer to a packet to send
	short   bool          // whether a received datagram was shorter than madSize
	failed  error         // error of a request, in mad, that could not be sent or was not answered; nil for a received datagram
}
