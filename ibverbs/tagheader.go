package ibverbs

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// TagMessage says what a message to a queue with a tag list is.
type TagMessage = libibverbs.TmhOp

// The kinds of messages to a queue with a tag list.
const (
	TagMessageNoTag      TagMessage = libibverbs.IBV_TMH_NO_TAG // takes a receive of SRQ.PostRecv
	TagMessageRendezvous TagMessage = libibverbs.IBV_TMH_RNDV   // a RendezvousHeader says where the data is, to be read from there
	TagMessageFin        TagMessage = libibverbs.IBV_TMH_FIN    // the data of a rendezvous has been read
	TagMessageEager      TagMessage = libibverbs.IBV_TMH_EAGER  // has the data itself
)

// The lengths of the headers in bytes.
const (
	TagHeaderLen        = 16
	RendezvousHeaderLen = 16
)

// TagHeader is what the program puts in front of each message to a queue with
// a tag list. The device leaves it out of what a receive of the list gets; one
// of SRQ.PostRecv has it.
type TagHeader struct {
	Message TagMessage
	Context uint32 // anything; WC.TMInfo has it at the other side
	Tag     uint64
}

// AppendBinary appends the header as it is sent, TagHeaderLen bytes. It is an
// encoding.BinaryAppender.
func (h TagHeader) AppendBinary(b []byte) ([]byte, error) {
	if h.Message > math.MaxUint8 {
		return b, cerr.Refuse("TagHeader.AppendBinary", "", "tag header of message type %d", uint32(h.Message))
	}
	b = append(b, byte(h.Message), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Context)
	return binary.BigEndian.AppendUint64(b, h.Tag), nil
}

// ParseTagHeader reads the header of a message and returns what follows it. If
// the message is shorter than a header, the error is io.ErrUnexpectedEOF.
func ParseTagHeader(message []byte) (h TagHeader, rest []byte, err error) {
	if len(message) < TagHeaderLen {
		return TagHeader{}, nil, fmt.Errorf("tag header in a message of %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	return TagHeader{
		Message: TagMessage(message[0]),
		Context: binary.BigEndian.Uint32(message[4:]),
		Tag:     binary.BigEndian.Uint64(message[8:]),
	}, message[TagHeaderLen:], nil
}

// RendezvousHeader follows the TagHeader of a message that is
// TagMessageRendezvous: the sender's memory that the data is to be read from.
type RendezvousHeader RemoteBuffer

// AppendBinary appends the header as it is sent, RendezvousHeaderLen bytes. It
// is an encoding.BinaryAppender.
func (h RendezvousHeader) AppendBinary(b []byte) ([]byte, error) {
	if h.Len > math.MaxUint32 {
		return b, cerr.Refuse("RendezvousHeader.AppendBinary", "", "rendezvous for %d bytes, of 4 GiB or more", h.Len)
	}
	b = binary.BigEndian.AppendUint64(b, h.Addr)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(h.Len)), nil
}

// ParseRendezvousHeader reads the header from what ParseTagHeader left of a
// message, and returns what follows it. If that is shorter than a header, the
// error is io.ErrUnexpectedEOF.
func ParseRendezvousHeader(message []byte) (h RendezvousHeader, rest []byte, err error) {
	if len(message) < RendezvousHeaderLen {
		return RendezvousHeader{}, nil, fmt.Errorf("rendezvous header in %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	return RendezvousHeader{
		Addr: binary.BigEndian.Uint64(message),
		RKey: binary.BigEndian.Uint32(message[8:]),
		Len:  uint64(binary.BigEndian.Uint32(message[12:])),
	}, message[RendezvousHeaderLen:], nil
}
