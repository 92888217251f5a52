// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/verbena-go/verbena/ibverbs"
)

// messageSize is the size of all control messages, in bytes.
const messageSize = 32

// opcode says what a control message is.
type opcode uint16

const (
	getServerFeature   opcode = iota // client: which features are there? server: these
	setClientFeature                 // client: I use these features
	keepalive                        // nothing
	registerXferMemory               // write to this window from now on
)

// message is a control message. Numbers are in network byte order.
type message struct {
	opcode   opcode               // bytes 0 and 1
	features uint64               // bytes 24 to 31, of getServerFeature and setClientFeature
	window   ibverbs.RemoteBuffer // of registerXferMemory: address in bytes 16 to 23, length in 4 bytes, key in 4 bytes
}

// encode writes the message to the messageSize bytes of b.
func (m message) encode(b []byte) {
	clear(b[:messageSize])
	binary.BigEndian.PutUint16(b, uint16(m.opcode))
	if m.opcode == registerXferMemory {
		binary.BigEndian.PutUint64(b[16:], m.window.Addr)
		binary.BigEndian.PutUint32(b[24:], uint32(m.window.Len))
		binary.BigEndian.PutUint32(b[28:], m.window.RKey)
		return
	}
	binary.BigEndian.PutUint64(b[24:], m.features)
}

// parse reads a message of the server. It fails for what a server cannot send.
func parse(b []byte) (message, error) {
	if len(b) != messageSize {
		return message{}, fmt.Errorf("a control message of %d bytes instead of %d", len(b), messageSize)
	}
	m := message{opcode: opcode(binary.BigEndian.Uint16(b))}
	switch m.opcode {
	case getServerFeature:
		m.features = binary.BigEndian.Uint64(b[24:])
	case keepalive:
	case registerXferMemory:
		m.window.Addr = binary.BigEndian.Uint64(b[16:])
		m.window.Len = uint64(binary.BigEndian.Uint32(b[24:]))
		m.window.RKey = binary.BigEndian.Uint32(b[28:])
		if m.window.Len == 0 || m.window.Addr > math.MaxUint64-m.window.Len {
			return message{}, fmt.Errorf("a window of %d bytes at address %#x", m.window.Len, m.window.Addr)
		}
	default:
		return message{}, fmt.Errorf("a control message with the opcode %d, which servers do not send", m.opcode)
	}
	return m, nil
}
