// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// Opcode is the first byte of a packet. It determines the transport, the
// operation and the headers of the packet.
type Opcode uint8

// Opcodes of RoCE version 2.
const (
	RCSendFirst    Opcode = 0x00
	RCSendMiddle   Opcode = 0x01
	RCSendLast     Opcode = 0x02
	RCSendLastImm  Opcode = 0x03
	RCSendOnly     Opcode = 0x04
	RCSendOnlyImm  Opcode = 0x05
	RCWriteFirst   Opcode = 0x06
	RCWriteMiddle  Opcode = 0x07
	RCWriteLast    Opcode = 0x08
	RCWriteLastImm Opcode = 0x09
	RCWriteOnly    Opcode = 0x0A
	RCWriteOnlyImm Opcode = 0x0B
	RCReadRequest  Opcode = 0x0C
	RCReadFirst    Opcode = 0x0D // RCReadFirst to RCReadOnly are the opcodes of READ responses
	RCReadMiddle   Opcode = 0x0E
	RCReadLast     Opcode = 0x0F
	RCReadOnly     Opcode = 0x10
	RCAck          Opcode = 0x11 // ACK, NAK or RNR NAK, as the syndrome says
	RCAtomicAck    Opcode = 0x12
	RCCompareSwap  Opcode = 0x13
	RCFetchAdd     Opcode = 0x14
	RCSendLastInv  Opcode = 0x16
	RCSendOnlyInv  Opcode = 0x17
	RCFlush        Opcode = 0x1C // answered by a READ response without data, like RCAtomicWrite
	RCAtomicWrite  Opcode = 0x1D
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2A
	UCWriteOnlyImm Opcode = 0x2B
	UDSendOnly     Opcode = 0x64
	UDSendOnlyImm  Opcode = 0x65
	CNP            Opcode = 0x81 // congestion notification

	XRCSendFirst    Opcode = 0xA0 // each is 0xA0 above that of a reliable connection
	XRCSendMiddle   Opcode = 0xA1
	XRCSendLast     Opcode = 0xA2
	XRCSendLastImm  Opcode = 0xA3
	XRCSendOnly     Opcode = 0xA4
	XRCSendOnlyImm  Opcode = 0xA5
	XRCWriteFirst   Opcode = 0xA6
	XRCWriteMiddle  Opcode = 0xA7
	XRCWriteLast    Opcode = 0xA8
	XRCWriteLastImm Opcode = 0xA9
	XRCWriteOnly    Opcode = 0xAA
	XRCWriteOnlyImm Opcode = 0xAB
	XRCReadRequest  Opcode = 0xAC
	XRCReadFirst    Opcode = 0xAD
	XRCReadMiddle   Opcode = 0xAE
	XRCReadLast     Opcode = 0xAF
	XRCReadOnly     Opcode = 0xB0
	XRCAck          Opcode = 0xB1
	XRCAtomicAck    Opcode = 0xB2
	XRCCompareSwap  Opcode = 0xB3
	XRCFetchAdd     Opcode = 0xB4
	XRCSendLastInv  Opcode = 0xB6
	XRCSendOnlyInv  Opcode = 0xB7
	XRCFlush        Opcode = 0xBC
	XRCAtomicWrite  Opcode = 0xBD
)

// Transport is the transport service to which an opcode belongs.
type Transport uint8

// Transport services.
const (
	RC         Transport = 0 // reliable connection
	UC         Transport = 1 // unreliable connection
	UD         Transport = 3 // datagrams
	Congestion Transport = 4 // CNP only
	XRC        Transport = 5 // extended reliable connection
)

// Properties of opcodes, in opcodeInfo.has.
const (
	first = 1 << iota
	last
	middle
	send
	write
	response
	payload
	deth
	reth
	atomicETH
	aeth
	atomicAckETH
	imm
	inv
	cnp // the packet has 16 reserved bytes, which are zero
	feth
	xrcETH

	only = first | last
)

// opcodeInfo is the name and the properties of an opcode. has is 0 for an
// unknown opcode.
type opcodeInfo struct {
	name string
	has  uint32
}

var opcodes = withXRC([256]opcodeInfo{
	RCSendFirst:    {"RC SEND first", send | first | payload},
	RCSendMiddle:   {"RC SEND middle", send | middle | payload},
	RCSendLast:     {"RC SEND last", send | last | payload},
	RCSendLastImm:  {"RC SEND last with immediate", send | last | imm | payload},
	RCSendOnly:     {"RC SEND only", send | only | payload},
	RCSendOnlyImm:  {"RC SEND only with immediate", send | only | imm | payload},
	RCWriteFirst:   {"RC WRITE first", write | first | reth | payload},
	RCWriteMiddle:  {"RC WRITE middle", write | middle | payload},
	RCWriteLast:    {"RC WRITE last", write | last | payload},
	RCWriteLastImm: {"RC WRITE last with immediate", write | last | imm | payload},
	RCWriteOnly:    {"RC WRITE only", write | only | reth | payload},
	RCWriteOnlyImm: {"RC WRITE only with immediate", write | only | reth | imm | payload},
	RCReadRequest:  {"RC READ request", only | reth},
	RCReadFirst:    {"RC READ response first", response | first | aeth | payload},
	RCReadMiddle:   {"RC READ response middle", response | middle | payload},
	RCReadLast:     {"RC READ response last", response | last | aeth | payload},
	RCReadOnly:     {"RC READ response only", response | only | aeth | payload},
	RCAck:          {"RC ACK", response | only | aeth},
	RCAtomicAck:    {"RC atomic ACK", response | only | aeth | atomicAckETH},
	RCCompareSwap:  {"RC compare and swap", only | atomicETH},
	RCFetchAdd:     {"RC fetch and add", only | atomicETH},
	RCSendLastInv:  {"RC SEND last with invalidate", send | last | inv | payload},
	RCSendOnlyInv:  {"RC SEND only with invalidate", send | only | inv | payload},
	RCFlush:        {"RC FLUSH", only | feth | reth},
	RCAtomicWrite:  {"RC ATOMIC WRITE", only | reth | payload},
	UCSendFirst:    {"UC SEND first", send | first | payload},
	UCSendMiddle:   {"UC SEND middle", send | middle | payload},
	UCSendLast:     {"UC SEND last", send | last | payload},
	UCSendLastImm:  {"UC SEND last with immediate", send | last | imm | payload},
	UCSendOnly:     {"UC SEND only", send | only | payload},
	UCSendOnlyImm:  {"UC SEND only with immediate", send | only | imm | payload},
	UCWriteFirst:   {"UC WRITE first", write | first | reth | payload},
	UCWriteMiddle:  {"UC WRITE middle", write | middle | payload},
	UCWriteLast:    {"UC WRITE last", write | last | payload},
	UCWriteLastImm: {"UC WRITE last with immediate", write | last | imm | payload},
	UCWriteOnly:    {"UC WRITE only", write | only | reth | payload},
	UCWriteOnlyImm: {"UC WRITE only with immediate", write | only | reth | imm | payload},
	UDSendOnly:     {"UD SEND only", send | only | deth | payload},
	UDSendOnlyImm:  {"UD SEND only with immediate", send | only | deth | imm | payload},
	CNP:            {"CNP", only | cnp},
})

// withXRC adds the opcodes of extended reliable connections to the table. They
// are those of reliable connections, and each request has one more header.
func withXRC(table [256]opcodeInfo) [256]opcodeInfo {
	for o, info := range table[:UCSendFirst] {
		if info.has == 0 {
			continue
		}
		info.name = "X" + info.name
		if info.has&response == 0 {
			info.has |= xrcETH
		}
		table[int(XRCSendFirst)+o] = info
	}
	return table
}

// is reports whether o has one of the properties.
func (o Opcode) is(what uint32) bool { return opcodes[o].has&what != 0 }

func (o Opcode) String() string {
	if !o.Valid() {
		return fmt.Sprintf("opcode %#02x", uint8(o))
	}
	return opcodes[o].name
}

// Valid reports whether this package knows the opcode.
func (o Opcode) Valid() bool { return opcodes[o].has != 0 }

// Transport returns the transport service of o.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// Operation returns the opcode of a reliable connection for the same operation.
// For example, it is RCAck for an ACK of an extended reliable connection.
func (o Opcode) Operation() Opcode { return o & 0x1F }

// Of returns the opcode of the transport t for the same operation. It is not
// valid if the transport does not have the operation.
func (o Opcode) Of(t Transport) Opcode { return Opcode(t)<<5 | o.Operation() }

// Reliable reports whether lost packets of the transport are sent again.
func (t Transport) Reliable() bool { return t == RC || t == XRC }

// Begins reports whether the packet is the first or the only one of a message.
func (o Opcode) Begins() bool { return o.is(first) }

// Ends reports whether the packet is the last or the only one of a message.
func (o Opcode) Ends() bool { return o.is(last) }

// IsFirst reports whether the packet is the first of several packets of a
// message.
func (o Opcode) IsFirst() bool { return opcodes[o].has&only == first }

// IsMiddle reports whether the packet is neither the first nor the last packet
// of a message.
func (o Opcode) IsMiddle() bool { return o.is(middle) }

// IsLast reports whether the packet is the last of several packets of a
// message.
func (o Opcode) IsLast() bool { return opcodes[o].has&only == last }

// IsOnly reports whether the packet is the only one of a message. This is true
// of READ requests, FLUSHes, atomic operations and ACKs.
func (o Opcode) IsOnly() bool { return opcodes[o].has&only == only }

// IsSend reports whether the packet is part of a SEND.
func (o Opcode) IsSend() bool { return o.is(send) }

// IsWrite reports whether the packet is part of a WRITE.
func (o Opcode) IsWrite() bool { return o.is(write) }

// IsMessage reports whether the packet is part of a SEND or a WRITE.
func (o Opcode) IsMessage() bool { return o.is(send | write) }

// IsAtomic reports whether the packet requests an atomic operation that returns
// the old value.
func (o Opcode) IsAtomic() bool { return o.is(atomicETH) }

// IsReadResponse reports whether the packet is part of a READ response.
func (o Opcode) IsReadResponse() bool { return o.is(response) && o.is(payload) }

// IsRequest reports whether the packet goes to a responder.
func (o Opcode) IsRequest() bool { return o.Valid() && !o.is(response|cnp) }

// IsResponse reports whether the packet goes to a requester.
func (o Opcode) IsResponse() bool { return o.is(response) }

// HasPayload reports whether the packet may carry data.
func (o Opcode) HasPayload() bool { return o.is(payload) }

// HasDETH reports whether the packet has the fields QKey and SrcQP.
func (o Opcode) HasDETH() bool { return o.is(deth) }

// HasFETH reports whether the packet has the fields FlushType and FlushLevel.
func (o Opcode) HasFETH() bool { return o.is(feth) }

// HasXRCETH reports whether the packet has the field SRQ.
func (o Opcode) HasXRCETH() bool { return o.is(xrcETH) }

// HasRETH reports whether the packet has the fields Addr, RKey and Length.
func (o Opcode) HasRETH() bool { return o.is(reth) }

// HasAtomicETH reports whether the packet has the fields Addr, RKey, SwapAdd
// and Compare.
func (o Opcode) HasAtomicETH() bool { return o.is(atomicETH) }

// HasAETH reports whether the packet has the fields Syndrome and MSN.
func (o Opcode) HasAETH() bool { return o.is(aeth) }

// HasAtomicAckETH reports whether the packet has the field Orig.
func (o Opcode) HasAtomicAckETH() bool { return o.is(atomicAckETH) }

// HasImm reports whether the packet has the field Imm.
func (o Opcode) HasImm() bool { return o.is(imm) }

// HasInv reports whether the packet has the field InvKey.
func (o Opcode) HasInv() bool { return o.is(inv) }

// HeaderLen returns the number of bytes from the base transport header to the
// payload.
func (o Opcode) HeaderLen() int { return int(headerLens[o]) }

var headerLens = func() (lens [256]uint8) {
	for o, info := range opcodes {
		lens[o] = bthLen
		for _, h := range [...]struct {
			has uint32
			len uint8
		}{{deth, 8}, {xrcETH, 4}, {feth, 4}, {reth, 16}, {atomicETH, 28}, {aeth, 4}, {atomicAckETH, 8}, {imm, 4}, {inv, 4}, {cnp, 16}} {
			if info.has&h.has != 0 {
				lens[o] += h.len
			}
		}
	}
	return lens
}()
