// SPDX-License-Identifier: Apache-2.0

package protocol

import "fmt"

// A Word is the immediate data of a message: the message's kind in the upper
// three bits, and a value.
type Word uint32

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages. No others are sent.
const (
	KindData    Kind = 0 // bytes of the stream; the value is their number
	KindUpdate  Kind = 4 // a new limit in the low 16 bits, and perhaps a target entry
	KindIOMap   Kind = 6 // an entry for direct writes, which this package ignores
	KindControl Kind = 7
)

const (
	kindShift = 29
	valueMask = 1<<kindShift - 1
)

// The words that end one direction or both. KeepAlive is never sent: it marks
// the request of State.KeepAlive.
const (
	Disconnect = Word(KindControl) << kindShift
	KeepAlive  = Disconnect | 1
	Shutdown   = Disconnect | 2
)

// MaxData is the largest number of bytes in a message.
const MaxData = valueMask

// Data returns the word for n bytes of the stream.
func Data(n int) Word { return Word(n) & valueMask }

// Update returns the word for a new limit.
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
