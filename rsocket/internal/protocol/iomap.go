// SPDX-License-Identifier: Apache-2.0

package protocol

import "encoding/binary"

// IOMap is a region of one end to which the other end writes directly, without
// a message.
type IOMap struct {
	Offset uint64 // by which the program of the other end refers to the first byte
	Region
}

// IOMapLen is the number of bytes of an IOMap in a table.
const IOMapLen = 8 + EntryLen

// IOMaps rounds n, a number of IOMaps, down to one that a Hello can have: a
// Hello encodes the number in a byte.
func IOMaps(n int) int { return unscale(scale(min(max(n, 0), unscale(0xff)))) }

// TableLen returns the number of bytes of a table: its target entries, and its
// entries for direct writes.
func TableLen(ioMaps int) int { return Entries*EntryLen + ioMaps*IOMapLen }

// order returns the byte order of an end.
func order(bigEndian bool) binary.ByteOrder {
	if bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// PeerIOMaps returns the number of entries that this end may announce.
func (s *State) PeerIOMaps() int { return s.peer.IOMap }

// CanAnnounce reports whether Announce may be called.
func (s *State) CanAnnounce() bool { return s.free >= leastData && s.canSend() > 0 }

// Announce returns the request that gives the peer entry i of its table. The
// caller must put the entry into the send buffer, at the offset of the request.
func (s *State) Announce(i int) Post {
	if end := s.config.SendBuffer - s.place; s.config.Whole && end < IOMapLen { // the entry is at the start
		s.unsignaled += bytesBack * ID(end)
		s.free -= end
		s.place = 0
	}
	to := Region{Addr: s.peer.Table.Addr + uint64(s.peer.Table.Length)*EntryLen + uint64(i)*IOMapLen, Key: s.peer.Table.Key, Length: IOMapLen}
	s.sent++
	return s.take(Post{Word: IOMapEntry(i), To: to, Len: IOMapLen})
}

// PutIOMap encodes m in b as an entry of the peer's table, in the peer's byte
// order.
func (s *State) PutIOMap(b []byte, m IOMap) {
	order(s.peer.BigEndian).PutUint64(b, m.Offset)
	m.put(b[8:], s.peer.BigEndian)
}

// receiveIOMap decodes the entry of this end's table that the message w
// announces. The peer has written it.
func (s *State) receiveIOMap(w Word, table []byte) error {
	if err := s.count(w); err != nil {
		return err
	}
	i := int(uint16(w))
	if i >= len(s.ioMaps) {
		return nil // no memory of this end has such an entry
	}
	b := table[TableLen(i):]
	s.ioMaps[i] = IOMap{order(s.config.BigEndian).Uint64(b), region(b[8:], s.config.BigEndian)}
	return nil
}

// Find returns the memory of the peer from the offset on, to the end of its
// IOMap. ok is false if no IOMap of the peer has the offset.
func (s *State) Find(offset uint64) (to Region, ok bool) {
	for _, m := range s.ioMaps {
		if at := offset - m.Offset; at < uint64(m.Length) {
			return Region{Addr: m.Addr + at, Key: m.Key, Length: m.Length - uint32(at)}, true
		}
	}
	return Region{}, false
}

// RoomDirect returns the number of bytes, of n that are to be written directly,
// for which the send buffer has room and which one request can write now. The
// result is 0 if the caller must wait. Direct writes need no credit and no room
// in the target buffer of the peer.
func (s *State) RoomDirect(n int) int {
	if s.free < min(n, leastData) || !s.writable || s.disconnected || s.silent || s.slots == 0 {
		return 0
	}
	return s.inBuffer(n)
}

// WriteDirect returns the request that writes the next n bytes of the send
// buffer to the memory of the peer at to, without a message.
func (s *State) WriteDirect(to Region, n int) Post {
	return s.take(Post{To: to, Len: n, Direct: true})
}
