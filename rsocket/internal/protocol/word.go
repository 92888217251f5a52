// SPDX-License-Identifier: Apache-2.0

package protocol

import "fmt"

// Word is the immediate data of a message. The upper three bits are the
// message's kind, and the others a value.
type Word uint32

// Kind is the kind of a message.
type Kind uint8

// Kinds of messages. The protocol has no others.
const (
	KindData    Kind = 0 // data; the value is the number of bytes
	KindUpdate  Kind = 4 // update of the limit of messages, in the lower 16 bits; it may come with an entry of the target table
	KindIOMap   Kind = 6 // an entry for direct writes; the lower 16 bits are its index
	KindControl Kind = 7 // end of one or both directions
)

const (
	kindShift = 29
	valueMask = 1<<kindShift - 1
)

// Words of control messages. KeepAlive is never sent: it identifies the request
// of State.KeepAlive.
const (
	Disconnect = Word(KindControl) << kindShift
	KeepAlive  = Disconnect | 1
	Shutdown   = Disconnect | 2
)

// MaxData is the largest number of bytes in a message.
const MaxData = valueMask

// Data returns the word of a message with n bytes of data.
func Data(n int) Word { return Word(n) & valueMask }

// IOMapEntry returns the word of the message with entry i for direct writes.
func IOMapEntry(i int) Word { return Word(KindIOMap)<<kindShift | Word(uint16(i)) }

// Update returns the word of a message with a new limit.
func Update(limit uint16) Word { return Word(KindUpdate)<<kindShift | Word(limit) }

// Kind returns the kind of the message.
func (w Word) Kind() Kind { return Kind(w >> kindShift) }

// Value returns the lower 29 bits.
func (w Word) Value() int { return int(w & valueMask) }

// String returns the name of the message.
func (w Word) String() string {
	switch w {
	case Disconnect:
		return "DISCONNECT"
	case KeepAlive:
		return "KEEPALIVE"
	case Shutdown:
		return "SHUTDOWN"
	}
	switch w.Kind() {
	case KindData:
		return fmt.Sprintf("DATA of %d bytes", w.Value())
	case KindUpdate:
		return fmt.Sprintf("SGL with limit %d", uint16(w))
	case KindIOMap:
		return fmt.Sprintf("IOMAP_SGL of entry %d", uint16(w))
	}
	return fmt.Sprintf("word %#08x", uint32(w))
}
