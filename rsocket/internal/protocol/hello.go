// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/binary"
	"fmt"
	"syscall"
)

// HelloLen is the number of bytes of a marshaled Hello.
const HelloLen = 40

// version is the version of the protocol.
const version = 1

// Flags in a Hello.
const (
	flagNetOrder = 1 << iota // the sender's processor is big-endian
	flagIOMap                // the field for the number of direct-write entries (IOMap) is valid
)

// Region is memory of one end to which the other may write.
type Region struct {
	Addr   uint64
	Key    uint32
	Length uint32
}

// Hello is what each end tells the other at first. It is the private data of
// the request for a connection, and of its acceptance.
type Hello struct {
	BigEndian bool   // whether the sender's processor is big-endian
	Credits   uint16 // number of messages that the receiver of the Hello may send at first
	IOMap     int    // number of the sender's entries for direct writes
	Table     Region // the sender's target table; Length is its number of entries
	Buffer    Region // part of the sender's receive buffer for the first bytes of the stream
}

// Marshal encodes the Hello as private data.
func (h Hello) Marshal() []byte {
	b := make([]byte, HelloLen)
	b[0], b[1] = version, flagIOMap
	if h.BigEndian {
		b[1] |= flagNetOrder
	}
	binary.BigEndian.PutUint16(b[2:], h.Credits)
	b[7] = scale(h.IOMap)
	h.Table.put(b[8:], true)
	h.Buffer.put(b[24:], true)
	return b
}

// maxEntries limits the number of entries in a peer's target table. Only two of
// them are in use at a time.
const maxEntries = 1 << 16

// ErrVersion is the error for a peer that does not speak this version of the
// protocol.
var ErrVersion = fmt.Errorf("not the rsocket protocol, or another version of it: %w", syscall.ENOTSUP)

// ParseHello decodes private data, which may be padded at its end.
func ParseHello(b []byte) (Hello, error) {
	if len(b) < HelloLen {
		return Hello{}, violation("private data has %d bytes, fewer than %d", len(b), HelloLen)
	}
	if b[0] != version {
		return Hello{}, fmt.Errorf("version %d: %w", b[0], ErrVersion)
	}
	h := Hello{
		BigEndian: b[1]&flagNetOrder != 0,
		Credits:   binary.BigEndian.Uint16(b[2:]),
		Table:     region(b[8:], true),
		Buffer:    region(b[24:], true),
	}
	if b[1]&flagIOMap != 0 {
		h.IOMap = unscale(b[7])
	}
	switch {
	case h.Credits == 0:
		return Hello{}, violation("the peer permits no messages (0 credits)")
	case h.Table.Length < 2 || h.Table.Length > maxEntries:
		return Hello{}, violation("target table has %d entries, want 2 to %d", h.Table.Length, maxEntries)
	}
	return h, nil
}

// scale encodes a number of entries in a byte. It rounds down.
func scale(n int) byte {
	if n <= 128 {
		return byte(n)
	}
	return byte(128 | n>>8)
}

// unscale decodes a number of entries.
func unscale(b byte) int {
	if b <= 128 {
		return int(b)
	}
	return int(b&127) << 8
}

// EntryLen is the number of bytes of an entry in a target table.
const EntryLen = 16

// put encodes the region as an entry of a target table. It calls methods of
// both byte orders directly, since an interface would cause an allocation.
func (r Region) put(b []byte, bigEndian bool) {
	if bigEndian {
		binary.BigEndian.PutUint64(b, r.Addr)
		binary.BigEndian.PutUint32(b[8:], r.Key)
		binary.BigEndian.PutUint32(b[12:], r.Length)
		return
	}
	binary.LittleEndian.PutUint64(b, r.Addr)
	binary.LittleEndian.PutUint32(b[8:], r.Key)
	binary.LittleEndian.PutUint32(b[12:], r.Length)
}

// region decodes an entry of a target table.
func region(b []byte, bigEndian bool) Region {
	if bigEndian {
		return Region{Addr: binary.BigEndian.Uint64(b), Key: binary.BigEndian.Uint32(b[8:]), Length: binary.BigEndian.Uint32(b[12:])}
	}
	return Region{Addr: binary.LittleEndian.Uint64(b), Key: binary.LittleEndian.Uint32(b[8:]), Length: binary.LittleEndian.Uint32(b[12:])}
}

// ErrViolation is the error for a peer that breaks the protocol. It matches
// syscall.EPROTO.
var ErrViolation = fmt.Errorf("the peer breaks the rsocket protocol: %w", syscall.EPROTO)

// violation returns an error that describes how the peer has broken the
// protocol. It matches ErrViolation.
func violation(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrViolation)
}
