// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"errors"
	"iter"
	"syscall"
)

// Sizes of struct nlmsghdr and struct nlattr, and the alignment of both.
const (
	messageHeader   = 16
	attributeHeader = 4
	alignment       = 4
)

// Types and flags of messages.
const (
	typeError = 2 // NLMSG_ERROR
	typeDone  = 3 // NLMSG_DONE

	flagRequest = 1 // NLM_F_REQUEST
	flagMulti   = 2 // NLM_F_MULTI

	flagsOfAttribute = 1<<15 | 1<<14 // NLA_F_NESTED, NLA_F_NET_BYTEORDER; flags in the type of an attribute
)

// The last message of an answer has a negative errno, or 0.
const (
	errnoSize = 4
	maxErrno  = 4095
)

// Dump is the flag of a request whose answer is a list (NLM_F_DUMP).
const Dump = 0x100 | 0x200

// ErrShort is the error of an answer that is shorter than it says.
var ErrShort = errors.New("the kernel's answer is shorter than it says")

// align rounds n up to the alignment of messages and attributes.
func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// request returns a request message.
func request(kind, flags uint16, sequence uint32, body []byte) []byte {
	b := make([]byte, messageHeader, messageHeader+len(body))
	binary.NativeEndian.PutUint32(b, uint32(messageHeader+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], flagRequest|flags)
	binary.NativeEndian.PutUint32(b[8:], sequence)
	return append(b, body...)
}

// Append appends an attribute to the body of a request.
func Append(body []byte, kind uint16, value []byte) []byte {
	body = binary.NativeEndian.AppendUint16(body, uint16(attributeHeader+len(value)))
	body = binary.NativeEndian.AppendUint16(body, kind)
	body = append(body, value...)
	return append(body, make([]byte, align(len(value))-len(value))...)
}

// answers collects the bodies of the messages that answer a request, which has
// the number sequence.
type answers struct {
	sequence uint32
	messages [][]byte
}

// add adds the messages in b. done reports whether the answer is complete. The
// error is the kernel's error, or ErrShort.
func (a *answers) add(b []byte) (done bool, err error) {
	for len(b) > 0 {
		if len(b) < messageHeader {
			return false, ErrShort
		}
		size := int(binary.NativeEndian.Uint32(b))
		kind, flags, sequence := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])
		if size < messageHeader || size > len(b) {
			return false, ErrShort
		}
		body := b[messageHeader:size]
		b = b[min(align(size), len(b)):]
		switch {
		case sequence != a.sequence:
			// This is the end of an earlier request's answer.
		case kind == typeError || kind == typeDone:
			return true, errorOf(body)
		default:
			a.messages = append(a.messages, body)
			if flags&flagMulti == 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// errorOf returns the error in a message that ends an answer, or nil.
func errorOf(body []byte) error {
	if len(body) < errnoSize {
		return ErrShort
	}
	switch errno := -int64(int32(binary.NativeEndian.Uint32(body))); {
	case errno == 0:
		return nil
	case 0 < errno && errno <= maxErrno:
		return syscall.Errno(errno)
	}
	return ErrShort
}

// Attributes has the values of the attributes of an object, by attribute
// number. If an attribute is repeated, it has several values.
type Attributes map[uint16][][]byte

// Parse parses attributes. b is the body of a message, without a struct that
// may precede the attributes.
func Parse(b []byte) (Attributes, error) {
	all := Attributes{}
	for len(b) > 0 {
		if len(b) < attributeHeader {
			return nil, ErrShort
		}
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&^flagsOfAttribute
		if size < attributeHeader || size > len(b) {
			return nil, ErrShort
		}
		all[kind] = append(all[kind], b[attributeHeader:size])
		b = b[min(align(size), len(b)):]
	}
	return all, nil
}

// first returns the first value of an attribute, or nil if it is missing or has
// fewer than size bytes.
func (a Attributes) first(kind uint16, size int) []byte {
	if values := a[kind]; len(values) > 0 && len(values[0]) >= size {
		return values[0]
	}
	return nil
}

// Uint8 returns an attribute of 8 bits. It returns false if the attribute is
// missing.
func (a Attributes) Uint8(kind uint16) (uint8, bool) {
	b := a.first(kind, 1)
	if b == nil {
		return 0, false
	}
	return b[0], true
}

// Uint32 returns an attribute of 32 bits. It returns false if the attribute is
// missing.
func (a Attributes) Uint32(kind uint16) (uint32, bool) {
	b := a.first(kind, 4)
	if b == nil {
		return 0, false
	}
	return binary.NativeEndian.Uint32(b), true
}

// Uint64 returns an attribute of 64 bits. It returns false if the attribute is
// missing.
func (a Attributes) Uint64(kind uint16) (uint64, bool) {
	b := a.first(kind, 8)
	if b == nil {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b), true
}

// Bytes returns the value of an attribute, or nil if the attribute is missing.
func (a Attributes) Bytes(kind uint16) []byte { return a.first(kind, 0) }

// String returns the value of a text attribute, or "" if the attribute is
// missing.
func (a Attributes) String(kind uint16) string {
	b := a.first(kind, 0)
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Entries iterates over the objects in a table. The value of the attribute
// table is a list of attributes with the number entry. The value of each of
// these has the attributes of one object.
func (a Attributes) Entries(table, entry uint16) iter.Seq2[Attributes, error] {
	return func(yield func(Attributes, error) bool) {
		for _, value := range a[table] {
			list, err := Parse(value)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, element := range list[entry] {
				if !yield(Parse(element)) {
					return
				}
			}
		}
	}
}
