// SPDX-License-Identifier: Apache-2.0

package tag

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
)

// MessageKind is the kind of a message to a queue with a tag list.
type MessageKind = libibverbs.TmhOp

// The kinds of messages to a queue with a tag list.
const (
	MessageNoTag      MessageKind = libibverbs.IBV_TMH_NO_TAG // takes a receive of ibverbs.SRQ.PostRecv
	MessageRendezvous MessageKind = libibverbs.IBV_TMH_RNDV   // has a RendezvousHeader, which says where to read the data
	MessageFin        MessageKind = libibverbs.IBV_TMH_FIN    // reports that the data of a rendezvous has been read
	MessageEager      MessageKind = libibverbs.IBV_TMH_EAGER  // contains the data
)

// The lengths of the headers in bytes.
const (
	HeaderLen           = 16
	RendezvousHeaderLen = 16
)

// Header is the header that the program puts before each message to a queue
// with a tag list. The device removes it from a message that matches a receive
// of the tag list. A message that takes a receive of [ibverbs.SRQ.PostRecv]
// arrives with it.
type Header struct {
	Kind    MessageKind // kind of the message; 0 means MessageNoTag
	Context uint32      // any value; ibverbs.WC.TMInfo returns it to the receiver
	Tag     uint64
}

// AppendBinary appends the header as it is sent, HeaderLen bytes. It implements
// encoding.BinaryAppender.
func (h Header) AppendBinary(b []byte) ([]byte, error) {
	if h.Kind > math.MaxUint8 {
		return b, cerr.Refuse("tag.Header.AppendBinary", "", "Kind is %d, more than 255", uint32(h.Kind))
	}
	b = append(b, byte(h.Kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Context)
	return binary.BigEndian.AppendUint64(b, h.Tag), nil
}

// ParseHeader parses the header of a message and returns the bytes after it. It
// fails with an error matching io.ErrUnexpectedEOF if the message is shorter
// than a header.
func ParseHeader(message []byte) (h Header, rest []byte, err error) {
	if len(message) < HeaderLen {
		return Header{}, nil, fmt.Errorf("parse a tag header: the message has only %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	return Header{
		Kind:    MessageKind(message[0]),
		Context: binary.BigEndian.Uint32(message[4:]),
		Tag:     binary.BigEndian.Uint64(message[8:]),
	}, message[HeaderLen:], nil
}

// RendezvousHeader follows the Header of a message of kind
// MessageRendezvous. It describes the sender's memory from which to read the
// data.
type RendezvousHeader ibverbs.RemoteBuffer

// AppendBinary appends the header as it is sent, RendezvousHeaderLen bytes. It
// fails if Len is 4 GiB or more, and for a result of ibverbs.RemoteBuffer.Sub
// that is outside the buffer it came from. It implements
// encoding.BinaryAppender.
func (h RendezvousHeader) AppendBinary(b []byte) ([]byte, error) {
	if err := sealed.Open(ibverbs.RemoteBuffer(h).Internals()).Takes(0); err != nil {
		return b, cerr.Argument("tag.RendezvousHeader.AppendBinary", "", err)
	}
	if h.Len > math.MaxUint32 {
		return b, cerr.Refuse("tag.RendezvousHeader.AppendBinary", "", "Len is %d, more than %d", h.Len, uint32(math.MaxUint32))
	}
	b = binary.BigEndian.AppendUint64(b, h.Addr)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(h.Len)), nil
}

// ParseRendezvousHeader parses the header from the bytes after the Header of a
// message, as ParseHeader returns them, and returns the bytes after it. It
// fails with an error matching io.ErrUnexpectedEOF if there are fewer bytes
// than a header has.
func ParseRendezvousHeader(message []byte) (h RendezvousHeader, rest []byte, err error) {
	if len(message) < RendezvousHeaderLen {
		return RendezvousHeader{}, nil, fmt.Errorf("parse a rendezvous header: there are only %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	return RendezvousHeader{
		Addr: binary.BigEndian.Uint64(message),
		RKey: binary.BigEndian.Uint32(message[8:]),
		Len:  uint64(binary.BigEndian.Uint32(message[12:])),
	}, message[RendezvousHeaderLen:], nil
}
