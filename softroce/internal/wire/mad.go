// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

// Message is a message of the connection manager: *REQ, *REP, *RTU, *REJ, *MRA,
// *DREQ, *DREP, *SIDRReq or *SIDRRep.
type Message interface {
	// Attribute returns the kind of the message.
	Attribute() Attribute
	// Head returns the message's header.
	Head() *Header
	// fields encodes or decodes all fields after the header.
	fields(codec)
}

// MADLen is the length in bytes of every message.
const MADLen = 256

// Attribute is the attribute ID of a message, which identifies its kind.
type Attribute uint16

// Attribute IDs of messages.
const (
	AttrREQ     Attribute = 0x10
	AttrMRA     Attribute = 0x11
	AttrREJ     Attribute = 0x12
	AttrREP     Attribute = 0x13
	AttrRTU     Attribute = 0x14
	AttrDREQ    Attribute = 0x15
	AttrDREP    Attribute = 0x16
	AttrSIDRReq Attribute = 0x17
	AttrSIDRRep Attribute = 0x18
)

func (a Attribute) String() string {
	switch a {
	case AttrREQ:
		return "REQ"
	case AttrMRA:
		return "MRA"
	case AttrREJ:
		return "REJ"
	case AttrREP:
		return "REP"
	case AttrRTU:
		return "RTU"
	case AttrDREQ:
		return "DREQ"
	case AttrDREP:
		return "DREP"
	case AttrSIDRReq:
		return "SIDR_REQ"
	case AttrSIDRRep:
		return "SIDR_REP"
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// Header is the header of every message.
type Header struct {
	TID     uint64 // transaction ID, which the sender of a request chooses and the answer repeats
	AttrMod uint32 // options of Linux's enhanced connection establishment (ECE), or 0
}

// Head returns the header.
func (h *Header) Head() *Header { return h }

// REQ requests a connection. In all messages, local fields are about the
// sender.
type REQ struct {
	Header
	LocalCommID           uint32
	VendorID              uint32 // 24 bits; for Linux's enhanced connection establishment (ECE)
	ServiceID             uint64
	LocalCAGUID           uint64
	LocalQKey             uint32
	LocalQPN              uint32 // 24 bits
	ResponderResources    uint8
	LocalEECN             uint32 // 24 bits
	InitiatorDepth        uint8
	RemoteEECN            uint32 // 24 bits
	RemoteResponseTimeout uint8  // 5 bits; see CMTimeout
	Transport             uint8  // 2 bits; 0: RC, 1: UC, 3: see ExtendedTransport
	FlowControl           bool
	StartingPSN           PSN   // first PSN that the receiver of the message must send
	LocalResponseTimeout  uint8 // 5 bits; see CMTimeout
	RetryCount            uint8 // 3 bits
	PKey                  uint16
	PathMTU               uint8 // 4 bits; 1 to 5 stand for 256 to 4096 bytes
	RDC                   bool
	RNRRetryCount         uint8 // 3 bits
	MaxCMRetries          uint8 // 4 bits
	SRQ                   bool
	ExtendedTransport     uint8 // 3 bits; 1: XRC
	Primary, Alternate    Path
	PrivateData           [92]byte // with rdma_cm, an IPHeader and 56 bytes of the program
}

// Attribute returns AttrREQ.
func (m *REQ) Attribute() Attribute { return AttrREQ }

func (m *REQ) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 5, 0, 24, &m.VendorID)
	bits(c, 8, 0, 64, &m.ServiceID)
	bits(c, 16, 0, 64, &m.LocalCAGUID)
	bits(c, 28, 0, 32, &m.LocalQKey)
	bits(c, 32, 0, 24, &m.LocalQPN)
	bits(c, 35, 0, 8, &m.ResponderResources)
	bits(c, 36, 0, 24, &m.LocalEECN)
	bits(c, 39, 0, 8, &m.InitiatorDepth)
	bits(c, 40, 0, 24, &m.RemoteEECN)
	bits(c, 43, 0, 5, &m.RemoteResponseTimeout)
	bits(c, 43, 5, 2, &m.Transport)
	flag(c, 43, 7, &m.FlowControl)
	bits(c, 44, 0, 24, &m.StartingPSN)
	bits(c, 47, 0, 5, &m.LocalResponseTimeout)
	bits(c, 47, 5, 3, &m.RetryCount)
	bits(c, 48, 0, 16, &m.PKey)
	bits(c, 50, 0, 4, &m.PathMTU)
	flag(c, 50, 4, &m.RDC)
	bits(c, 50, 5, 3, &m.RNRRetryCount)
	bits(c, 51, 0, 4, &m.MaxCMRetries)
	flag(c, 51, 4, &m.SRQ)
	bits(c, 51, 5, 3, &m.ExtendedTransport)
	m.Primary.fields(codec{c.b[52:96], c.write})
	m.Alternate.fields(codec{c.b[96:140], c.write})
	data(c, 140, m.PrivateData[:])
}

// Path has the parameters of packets from the sender of a REQ to its receiver.
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID GID
	FlowLabel           uint32 // 20 bits
	Rate                uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits; see AckTimeout
}

// fields encodes or decodes all fields of the path.
func (p *Path) fields(c codec) {
	bits(c, 0, 0, 16, &p.LocalLID)
	bits(c, 2, 0, 16, &p.RemoteLID)
	data(c, 4, p.LocalGID[:])
	data(c, 20, p.RemoteGID[:])
	bits(c, 36, 0, 20, &p.FlowLabel)
	bits(c, 39, 2, 6, &p.Rate)
	bits(c, 40, 0, 8, &p.TrafficClass)
	bits(c, 41, 0, 8, &p.HopLimit)
	bits(c, 42, 0, 4, &p.SL)
	flag(c, 42, 4, &p.SubnetLocal)
	bits(c, 43, 0, 5, &p.AckTimeout)
}

// REP accepts the connection that a REQ requests.
type REP struct {
	Header
	LocalCommID, RemoteCommID uint32
	LocalQKey                 uint32
	LocalQPN                  uint32 // 24 bits
	LocalEECN                 uint32 // 24 bits; queue pair number with XRC
	VendorID                  uint32 // 24 bits; for Linux's enhanced connection establishment (ECE)
	StartingPSN               PSN    // first PSN that the receiver of the message must send
	ResponderResources        uint8
	InitiatorDepth            uint8
	TargetAckDelay            uint8 // 5 bits; see CMTimeout
	FailoverAccepted          uint8 // 2 bits
	FlowControl               bool
	RNRRetryCount             uint8 // 3 bits
	SRQ                       bool
	LocalCAGUID               uint64
	PrivateData               [196]byte
}

// Attribute returns AttrREP.
func (m *REP) Attribute() Attribute { return AttrREP }

func (m *REP) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 4, 0, 32, &m.RemoteCommID)
	bits(c, 8, 0, 32, &m.LocalQKey)
	bits(c, 12, 0, 24, &m.LocalQPN)
	bits(c, 16, 0, 24, &m.LocalEECN)
	high, middle, low := uint8(m.VendorID>>16), uint8(m.VendorID>>8), uint8(m.VendorID)
	bits(c, 15, 0, 8, &high)
	bits(c, 19, 0, 8, &middle)
	bits(c, 23, 0, 8, &low)
	m.VendorID = uint32(high)<<16 | uint32(middle)<<8 | uint32(low)
	bits(c, 20, 0, 24, &m.StartingPSN)
	bits(c, 24, 0, 8, &m.ResponderResources)
	bits(c, 25, 0, 8, &m.InitiatorDepth)
	bits(c, 26, 0, 5, &m.TargetAckDelay)
	bits(c, 26, 5, 2, &m.FailoverAccepted)
	flag(c, 26, 7, &m.FlowControl)
	bits(c, 27, 0, 3, &m.RNRRetryCount)
	flag(c, 27, 3, &m.SRQ)
	bits(c, 28, 0, 64, &m.LocalCAGUID)
	data(c, 36, m.PrivateData[:])
}

// RTU confirms a REP: the sender of the REQ is ready to use the connection.
type RTU struct {
	Header
	LocalCommID, RemoteCommID uint32
	PrivateData               [224]byte
}

// Attribute returns AttrRTU.
func (m *RTU) Attribute() Attribute { return AttrRTU }

func (m *RTU) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 4, 0, 32, &m.RemoteCommID)
	data(c, 8, m.PrivateData[:])
}

// REJ rejects a REQ or a REP.
type REJ struct {
	Header
	LocalCommID, RemoteCommID uint32 // RemoteCommID is 0 if it is not known
	Rejected                  Answered
	InfoLength                uint8 // 7 bits; number of valid bytes in Info
	Reason                    RejectReason
	Info                      [72]byte
	PrivateData               [148]byte
}

// Attribute returns AttrREJ.
func (m *REJ) Attribute() Attribute { return AttrREJ }

func (m *REJ) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 4, 0, 32, &m.RemoteCommID)
	bits(c, 8, 0, 2, &m.Rejected)
	bits(c, 9, 0, 7, &m.InfoLength)
	bits(c, 10, 0, 16, &m.Reason)
	data(c, 12, m.Info[:])
	data(c, 84, m.PrivateData[:])
}

// Answered is the kind of message that a REJ or an MRA answers, in 2 bits.
type Answered uint8

// Kinds of messages that a REJ or an MRA answers.
const (
	AnswersREQ   Answered = 0
	AnswersREP   Answered = 1
	AnswersOther Answered = 2 // another message; in an MRA, a LAP, which RoCE does not use
)

// RejectReason is the reason of a rejection in a REJ.
type RejectReason uint16

// Reasons of a rejection that apply to RoCE.
const (
	RejectNoQP               RejectReason = 1
	RejectNoResources        RejectReason = 3
	RejectTimeout            RejectReason = 4
	RejectUnsupported        RejectReason = 5
	RejectCommID             RejectReason = 6
	RejectCommInstance       RejectReason = 7
	RejectServiceID          RejectReason = 8 // no ID listens for the service
	RejectTransportType      RejectReason = 9
	RejectStale              RejectReason = 10
	RejectGID                RejectReason = 12
	RejectMTU                RejectReason = 26
	RejectResponderResources RejectReason = 27 // too few responder resources
	RejectConsumer           RejectReason = 28 // rejected by the program
	RejectRNRRetry           RejectReason = 29
	RejectDuplicateCommID    RejectReason = 30
	RejectClassVersion       RejectReason = 31
)

// SIDRStatus is the result that a SIDRRep reports.
type SIDRStatus uint8

// Results of a request for a datagram service.
const (
	SIDRSuccess      SIDRStatus = 0
	SIDRNotSupported SIDRStatus = 1
	SIDRRejected     SIDRStatus = 2
	SIDRNoQP         SIDRStatus = 3
	SIDRRedirect     SIDRStatus = 4
	SIDRVersion      SIDRStatus = 5
)

// MRA announces that the answer to a message will take longer.
type MRA struct {
	Header
	LocalCommID, RemoteCommID uint32
	Received                  Answered
	ServiceTimeout            uint8 // 5 bits; see CMTimeout
	PrivateData               [222]byte
}

// Attribute returns AttrMRA.
func (m *MRA) Attribute() Attribute { return AttrMRA }

func (m *MRA) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 4, 0, 32, &m.RemoteCommID)
	bits(c, 8, 0, 2, &m.Received)
	bits(c, 9, 0, 5, &m.ServiceTimeout)
	data(c, 10, m.PrivateData[:])
}

// A DREQ ends a connection.
type DREQ struct {
	Header
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits; queue pair of the receiver of the message
	PrivateData               [220]byte
}

// Attribute returns AttrDREQ.
func (m *DREQ) Attribute() Attribute { return AttrDREQ }

func (m *DREQ) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 4, 0, 32, &m.RemoteCommID)
	bits(c, 8, 0, 24, &m.RemoteQPN)
	data(c, 12, m.PrivateData[:])
}

// DREP confirms a DREQ.
type DREP struct {
	Header
	LocalCommID, RemoteCommID uint32
	PrivateData               [224]byte
}

// Attribute returns AttrDREP.
func (m *DREP) Attribute() Attribute { return AttrDREP }

func (m *DREP) fields(c codec) {
	bits(c, 0, 0, 32, &m.LocalCommID)
	bits(c, 4, 0, 32, &m.RemoteCommID)
	data(c, 8, m.PrivateData[:])
}

// SIDRReq requests the queue pair number of a datagram service.
type SIDRReq struct {
	Header
	RequestID   uint32
	PKey        uint16
	ServiceID   uint64
	PrivateData [216]byte // with rdma_cm, an IPHeader and 180 bytes of the program
}

// Attribute returns AttrSIDRReq.
func (m *SIDRReq) Attribute() Attribute { return AttrSIDRReq }

func (m *SIDRReq) fields(c codec) {
	bits(c, 0, 0, 32, &m.RequestID)
	bits(c, 4, 0, 16, &m.PKey)
	bits(c, 8, 0, 64, &m.ServiceID)
	data(c, 16, m.PrivateData[:])
}

// SIDRRep answers a SIDRReq.
type SIDRRep struct {
	Header
	RequestID   uint32
	Status      SIDRStatus
	InfoLength  uint8  // number of valid bytes in Info
	VendorID    uint32 // 24 bits; for Linux's enhanced connection establishment (ECE)
	QPN         uint32 // 24 bits
	ServiceID   uint64
	QKey        uint32
	Info        [72]byte
	PrivateData [136]byte
}

// Attribute returns AttrSIDRRep.
func (m *SIDRRep) Attribute() Attribute { return AttrSIDRRep }

func (m *SIDRRep) fields(c codec) {
	bits(c, 0, 0, 32, &m.RequestID)
	bits(c, 4, 0, 8, &m.Status)
	bits(c, 5, 0, 8, &m.InfoLength)
	high, low := uint16(m.VendorID>>8), uint8(m.VendorID)
	bits(c, 6, 0, 16, &high)
	bits(c, 11, 0, 8, &low)
	m.VendorID = uint32(high)<<8 | uint32(low)
	bits(c, 8, 0, 24, &m.QPN)
	bits(c, 12, 0, 64, &m.ServiceID)
	bits(c, 20, 0, 32, &m.QKey)
	data(c, 24, m.Info[:])
	data(c, 96, m.PrivateData[:])
}

// MAD encodes m as the payload of a datagram to the queue pair GSI.
func MAD(m Message) [MADLen]byte {
	var b [MADLen]byte
	b[0], b[1], b[2], b[3] = madVersion, classCM, classVersion, methodSend
	binary.BigEndian.PutUint64(b[8:], m.Head().TID)
	binary.BigEndian.PutUint16(b[16:], uint16(m.Attribute()))
	binary.BigEndian.PutUint32(b[20:], m.Head().AttrMod)
	m.fields(codec{b: b[madHeaderLen:], write: true})
	return b
}

const (
	madHeaderLen = 24

	madVersion   = 1
	classCM      = 7
	classVersion = 2
	methodSend   = 3
)

// ParseMAD decodes the payload of a datagram to the queue pair GSI. It fails if
// the payload is not a message of a connection manager, or is a message of a
// kind that this package lacks.
func ParseMAD(b []byte) (Message, error) {
	if len(b) != MADLen {
		return nil, fmt.Errorf("MAD has %d bytes, not %d", len(b), MADLen)
	}
	for at, want := range [4]struct {
		name  string
		value byte
	}{{"base version", madVersion}, {"class", classCM}, {"class version", classVersion}, {"method", methodSend}} {
		if b[at] != want.value {
			return nil, fmt.Errorf("MAD has %s %d, not %d", want.name, b[at], want.value)
		}
	}
	var m Message
	switch a := Attribute(binary.BigEndian.Uint16(b[16:])); a {
	case AttrREQ:
		m = new(REQ)
	case AttrMRA:
		m = new(MRA)
	case AttrREJ:
		m = new(REJ)
	case AttrREP:
		m = new(REP)
	case AttrRTU:
		m = new(RTU)
	case AttrDREQ:
		m = new(DREQ)
	case AttrDREP:
		m = new(DREP)
	case AttrSIDRReq:
		m = new(SIDRReq)
	case AttrSIDRRep:
		m = new(SIDRRep)
	default:
		return nil, fmt.Errorf("MAD has the unknown %v", a)
	}
	m.Head().TID = binary.BigEndian.Uint64(b[8:])
	m.Head().AttrMod = binary.BigEndian.Uint32(b[20:])
	m.fields(codec{b: b[madHeaderLen:]})
	return m, nil
}

// codec encodes fields in b if write is set, and otherwise decodes them. So one
// list of a message's fields serves both purposes. To encode, b must be zero
// before.
type codec struct {
	b     []byte
	write bool
}

// bits encodes or decodes a field of width bits. The field starts at the bit
// with the number bit in byte at. Bit 0 is the highest bit of a byte.
func bits[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c codec, at, bit, width int, v *T) {
	n := (bit + width + 7) / 8
	var word uint64
	for _, x := range c.b[at : at+n] {
		word = word<<8 | uint64(x)
	}
	shift := n*8 - bit - width
	mask := (uint64(1)<<width - 1) << shift
	if !c.write {
		*v = T(word & mask >> shift)
		return
	}
	word |= uint64(*v) << shift & mask
	for i := n - 1; i >= 0; i-- {
		c.b[at+i] = byte(word)
		word >>= 8
	}
}

// flag encodes or decodes a field of one bit.
func flag(c codec, at, bit int, v *bool) {
	x := uint8(0)
	if *v {
		x = 1
	}
	bits(c, at, bit, 1, &x)
	*v = x == 1
}

// data encodes or decodes a field of whole bytes, which starts at byte at.
func data(c codec, at int, v []byte) {
	if c.write {
		copy(c.b[at:], v)
	} else {
		copy(v, c.b[at:])
	}
}
