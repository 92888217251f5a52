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

// The flags of a Hello.
const (
	flagNetOrder = 1 << iota // the sender is a big-endian host
	flagIOMap                // the size of the table for direct writes is valid
)

// A Region is memory of an end that the other end may write to.
type Region struct {
	Addr   uint64
	Key    uint32
	Length uint32
}

// A Hello is the private data of the request for a connection, and of its
// acceptance.
type Hello struct {
	BigEndian bool   // the byte order of the sender's processor
	Credits   uint16 // number of messages that the peer may send at first
	IOMap     int    // number of entries for direct writes
	Table     Region // target table; its length is the number of entries
	Buffer    Region // memory for the first bytes of the stream
}

// Marshal returns the Hello as private data.
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

// maxEntries limits the size of a peer's table. No more than two entries are
// ever in use.
const maxEntries = 1 << 16

// ErrVersion reports a peer that speaks another version of the protocol.
var ErrVersion = fmt.Errorf("not the rsocket protocol, or another version of it: %w", syscall.ENOTSUP)

// ParseHello parses private data, which the transport may have padded.
func ParseHello(b []byte) (Hello, error) {
	if len(b) < HelloLen {
		return Hello{}, violation("%d bytes of private data, less than %d", len(b), HelloLen)
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
		return Hello{}, violation("no credits")
	case h.Table.Length < 2 || h.Table.Length > maxEntries:
		return Hello{}, violation("a target table of %d entries, not from 2 to %d", h.Table.Length, maxEntries)
	}
	return h, nil
}

func scale(n int) byte {
	if n <= 128 {
		return byte(n)
	}
	return byte(128 | n>>8)
}

func unscale(b byte) int {
	if b <= 128 {
		return int(b)
	}
	return int(b&127) << 8
}

// EntryLen is the number of bytes of a target entry.
const EntryLen = 16

// put writes the region as a target entry. It calls both byte orders directly,
// since arguments of an interface's methods are allocated.
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

// region reads a target entry.
func region(b []byte, bigEndian bool) Region {
	if bigEndian {
		return Region{Addr: binary.BigEndian.Uint64(b), Key: binary.BigEndian.Uint32(b[8:]), Length: binary.BigEndian.Uint32(b[12:])}
	}
	return Region{Addr: binary.LittleEndian.Uint64(b), Key: binary.LittleEndian.Uint32(b[8:]), Length: binary.LittleEndian.Uint32(b[12:])}
}

// ErrViolation is matched by every error for a peer that breaks the protocol.
// It matches syscall.EPROTO.
var ErrViolation = fmt.Errorf("the peer breaks the rsocket protocol: %w", syscall.EPROTO)

// violation returns the error for a violation by the peer.
func violation(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrViolation)
}
