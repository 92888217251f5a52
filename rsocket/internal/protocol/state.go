// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/binary"
	"unsafe"
)

// Constants of the protocol and of this implementation.
const (
	Entries      = 2       // number of entries in this end's target table, to which the peer writes the addresses of its receive buffer
	ControlSlots = 4       // number of requests that are reserved for messages other than data
	FirstData    = 1 << 14 // length in bytes of the first message of a long write; the device sends it while the next one is copied
	LongData     = 1 << 16 // length in bytes of the longest message of a long write
	leastData    = 2048    // number of free bytes in the send buffer that a message waits for, unless less data is left to send
)

// Config describes one end of a connection.
type Config struct {
	BigEndian  bool   // whether this processor is big-endian
	SendQueue  int    // limit of requests in flight
	Credits    uint16 // number of data messages that the peer may send ahead; there are a few more receives than that
	SendBuffer int    // size of the send buffer in bytes
	Table      Region // this end's table, of TableLen(IOMaps) bytes; Length is not used
	IOMaps     int    // number of this end's entries for direct writes, as IOMaps returns it
	Buffer     Region // the receive buffer; its length is even
	Whole      bool   // whether the data of a message must be in one piece of the send buffer, and so does not continue at its start
	Prompt     bool   // whether each request must be signaled, so that its resources become free soon
	Messages   bool   // whether a word goes in a message of its own, after a plain write, as the device has no immediate data
	Answers    bool   // whether this end must not send before the peer's first message
}

// State is the state of one end of a connection.
type State struct {
	config Config
	peer   Hello

	// Sending.
	sent       uint16          // number of data messages sent, modulo 1<<16
	limit      uint16          // value of sent up to which the peer permits messages
	target     [Entries]Region // parts of the peer's receive buffer that are left to write to
	using      int             // index in target of the part to which the next data goes
	announced  int             // index in target of the entry that the peer will replace next
	slots      int             // number of requests for data that may still be posted
	free       int             // number of free bytes in the send buffer
	place      int             // offset of the next bytes in the send buffer
	unsignaled ID              // resources of unsignaled requests, which the completion of the next signaled request frees

	// Control messages.
	control   int // number of control messages that may still be posted
	controls  int // number of control messages since the start
	unnoticed int // number of control messages since the peer's last update

	// Receiving.
	arrived  uint64 // number of data messages received
	granted  uint64 // value of arrived up to which this end permits messages
	given    [2]int // numbers of bytes that the peer may still write: to the half of the receive buffer that it uses, and to the other
	unread   int    // number of unread bytes in the receive buffer
	position int    // offset of the first unread byte
	spare    int    // number of read bytes, whose space can be given back to the peer
	next     int    // index of the half of the receive buffer that is given back next
	entry    uint32 // index of the entry in the peer's target table that is written next

	// Writing directly.
	ioMaps []IOMap // entries that the peer has announced

	silent bool // whether this end must wait for the peer's first message before it sends

	// Ending.
	readable, writable bool // whether this end still reads, and whether it still writes
	ended              bool // whether the peer will send no more data
	disconnected       bool // whether the connection is over
	gone               bool // whether the peer has announced that it neither reads nor writes
	said               bool // whether this end has announced that it neither reads nor writes
}

// New returns the state of an end that is not connected yet.
func New(c Config) *State {
	half := int(c.Buffer.Length / 2)
	return &State{
		config: c, slots: c.SendQueue - ControlSlots, control: ControlSlots, free: c.SendBuffer, announced: 1,
		granted: uint64(c.Credits), given: [2]int{half, 0}, spare: half, next: 1, readable: true, writable: true,
		ioMaps: make([]IOMap, c.IOMaps), silent: c.Answers,
	}
}

// Hello returns this end's Hello.
func (s *State) Hello() Hello {
	h := Hello{
		BigEndian: s.config.BigEndian, Credits: s.config.Credits, IOMap: s.config.IOMaps, Table: s.config.Table, Buffer: s.config.Buffer,
	}
	h.Table.Length, h.Buffer.Length = Entries, s.config.Buffer.Length/2
	return h
}

// Connect takes the peer's Hello. It must be called before the methods below.
func (s *State) Connect(peer Hello) {
	s.peer = peer
	s.limit, s.target[0], s.entry = peer.Credits, peer.Buffer, 1%peer.Table.Length
}

// Post is a request that the caller must post.
type Post struct {
	Word   Word
	To     Region // memory of the peer to which the request writes; zero: none
	Direct bool   // whether the request has no word, so that the peer gets no message

	// ID must be passed to Complete when the request has completed; this
	// also completes all earlier requests. If ID is 0, the request need not
	// be signaled.
	ID ID

	// Offset and Len are the place of the data in the send buffer. At the
	// end of the buffer, the data continues at its start.
	Offset, Len int

	// Entry is the content that an update writes to the target table, if
	// HasEntry is true.
	HasEntry bool
	Entry    [EntryLen]byte
	Slot     int // number below ControlSlots that no other request in flight has
}

// ID says which resources become free when a request completes. A request with
// the ID 0 is not signaled; its resources are included in the ID of the next
// signaled request.
type ID uint64

// Parts of an ID. The limits are a send buffer of 1 GiB and a queue of 65535
// requests.
const (
	bytesBack   ID = 1
	slotBack    ID = 1 << 31
	controlBack ID = 1 << 47
	disconnects ID = 1 << 50 // set if the request ends the connection

	// IDBits is the number of bits of an ID.
	IDBits = 51
)

// bytes returns the number of bytes of the send buffer that become free.
func (id ID) bytes() int { return int(id & (slotBack - 1)) }

// slots returns the number of requests for data that become free.
func (id ID) slots() int { return int(id & (controlBack - 1) / slotBack) }

// controls returns the number of control messages that become free.
func (id ID) controls() int { return int(id & (disconnects - 1) / controlBack) }

// signal returns the ID of a request that uses the resources of the parameter
// back. The ID also has the resources of earlier unsignaled requests, as the
// request's completion frees all of them. If these resources are few, and must
// and Config.Prompt are false, signal returns 0: the request is not signaled,
// and the completion of a later request frees them. So an end that waits for an
// answer is not woken by the completion of its own request.
func (s *State) signal(back ID, must bool) ID {
	s.unsignaled += back
	q := s.unsignaled
	if !must && !s.config.Prompt && q.bytes() <= (s.config.SendBuffer-leastData)/4 &&
		q.slots() <= (s.config.SendQueue-ControlSlots)/4 && q.controls() <= ControlSlots/2 {
		return 0
	}
	s.unsignaled = 0
	return q
}

// cost returns the number of requests that a message takes, which writes to the
// peer's memory or is a word alone.
func (s *State) cost(writes bool) int {
	if s.config.Messages && writes {
		return 2
	}
	return 1
}

// canSend returns the number of bytes that may be sent in one message now. It
// leaves one credit unused for each control message that the peer may not have
// handled, up to ControlSlots, since the peer may have no more receives than
// credits. A message for which the peer has no receive would delay all later
// ones for the time of the peer's RNR timer, 655 ms with librdmacm.
func (s *State) canSend() int {
	window, kept := s.limit-s.sent, 0
	if s.peer.Credits >= 4*ControlSlots {
		kept = min(s.unnoticed, ControlSlots)
	}
	if !s.writable || s.disconnected || s.silent || s.slots < s.cost(true) || int(window) <= kept {
		return 0
	}
	return int(min(s.target[s.using].Length, MaxData))
}

// Room returns how many of n bytes in the send buffer may be sent in one
// message now, or 0. The number does not decrease until Send is called, unless
// the connection ends.
func (s *State) Room(n int) int {
	if s.free < min(n, leastData) {
		return 0
	}
	return min(s.inBuffer(n), s.canSend())
}

// inBuffer returns how many of n bytes fit into the send buffer now, for one
// request.
func (s *State) inBuffer(n int) int {
	if s.config.Whole {
		n = min(n, s.config.SendBuffer-s.place)
	}
	return min(n, s.free)
}

// RoomOutside returns how many of n bytes that are not in the send buffer may
// be sent in one message now, or 0.
func (s *State) RoomOutside(n int) int { return min(n, s.canSend()) }

// Offset returns the offset in the send buffer of the next bytes to send.
func (s *State) Offset() int { return s.place }

// Send returns the request that sends the next n bytes of the send buffer. n
// must be positive, and at most what Room returned.
func (s *State) Send(n int) Post {
	return s.take(s.send(n))
}

// take returns the request with its ID, and its place in the send buffer, whose
// next bytes it sends.
func (s *State) take(p Post) Post {
	n := s.cost(!p.Direct)
	s.slots -= n
	p.ID = s.signal(slotBack*ID(n)+bytesBack*ID(p.Len), false)
	p.Offset = s.place
	s.place = (s.place + p.Len) % s.config.SendBuffer
	s.free -= p.Len
	return p
}

// SendOutside returns the request that sends n bytes which are not in the send
// buffer.
func (s *State) SendOutside(n int) Post {
	p := s.send(n)
	s.slots -= s.cost(true)
	p.ID = s.signal(slotBack*ID(s.cost(true)), true)
	return p
}

// send returns a data message of n bytes, without its ID and its offset. The
// caller takes the slot.
func (s *State) send(n int) Post {
	t := &s.target[s.using]
	p := Post{Word: Data(n), To: *t, Len: n}
	s.sent++
	t.Addr += uint64(n)
	t.Length -= uint32(n)
	if t.Length == 0 {
		s.using = (s.using + 1) % Entries
	}
	return p
}

// Complete handles the completion of a request with that ID.
func (s *State) Complete(id ID) {
	s.free += id.bytes()
	s.slots += id.slots()
	s.control += id.controls()
	if id&disconnects != 0 {
		s.disconnected = true
	}
}

// Buffered returns the number of bytes of the send buffer that requests may
// use.
func (s *State) Buffered() int { return s.config.SendBuffer - s.free }

// Idle reports whether all posted requests have completed, apart from
// unsignaled ones.
func (s *State) Idle() bool {
	return s.slots+s.control+s.unsignaled.slots()+s.unsignaled.controls() == s.config.SendQueue
}

// Receive handles a received message: its word, and the number of bytes that it
// wrote, which is not used with Config.Messages. table is this end's target
// table, to which the peer may be writing. If the peer has broken the protocol,
// the error matches ErrViolation, and the connection must be ended.
func (s *State) Receive(w Word, length int, table []byte) error {
	s.silent = false
	if s.disconnected && w.Kind() != KindData {
		return nil
	}
	switch w.Kind() {
	case KindData:
		return s.receiveData(w, length)
	case KindUpdate:
		return s.receiveUpdate(w, length, table)
	case KindIOMap:
		return s.receiveIOMap(w, table)
	}
	switch w {
	case Disconnect:
		s.ended, s.disconnected, s.gone = true, true, true
		return nil
	case Shutdown:
		s.ended, s.readable = true, false
		if !s.writable {
			s.disconnected = true
		}
		return nil
	}
	return violation("unknown message %v", w)
}

// receiveData handles a data message.
func (s *State) receiveData(w Word, length int) error {
	n := w.Value()
	switch {
	case s.ended:
		return violation("%v after the peer has ended its data", w)
	case n == 0 || n != length && !s.config.Messages:
		return violation("%v, with a write of %d bytes", w, length)
	case n > s.given[0]:
		return violation("%v exceeds the %d bytes of room", w, s.given[0])
	}
	if err := s.count(w); err != nil {
		return err
	}
	s.given[0] -= n
	if s.given[0] == 0 {
		s.given = [2]int{s.given[1], 0}
	}
	s.unread += n
	return nil
}

// count counts a message that uses a credit. It fails if the peer has no credit
// left.
func (s *State) count(w Word) error {
	if s.arrived == s.granted {
		return violation("%v beyond the limit of %d messages", w, s.granted)
	}
	s.arrived++
	return nil
}

// receiveUpdate handles a message by which the peer permits more messages, and
// may announce a part of its receive buffer.
func (s *State) receiveUpdate(w Word, length int, table []byte) error {
	if s.config.Messages {
		s.limit, s.unnoticed = uint16(w), 0
		s.lookAtEntry(table)
		return nil
	}
	if length != 0 && length != EntryLen {
		return violation("%v, with a write of %d bytes", w, length)
	}
	s.limit, s.unnoticed = uint16(w), 0
	if length == 0 {
		return nil
	}
	t := &s.target[s.announced]
	if t.Length != 0 {
		return violation("entry %d of the target table was replaced before it was used up (%d bytes left)", s.announced, t.Length)
	}
	*t = region(table[s.announced*EntryLen:], s.config.BigEndian)
	if t.Length == 0 {
		return violation("entry %d of the target table is empty", s.announced)
	}
	s.announced = (s.announced + 1) % Entries
	return nil
}

// lookAtEntry takes the entry that the peer writes next, if it has written it:
// with Config.Messages, an update does not say whether it comes with an entry.
// It clears the entry in the table, so that the same one is not seen again.
func (s *State) lookAtEntry(table []byte) {
	t := &s.target[s.announced]
	if t.Length != 0 {
		return // the peer has to wait until the entry is used up
	}
	if *t = takeEntry(table[s.announced*EntryLen:], s.config.BigEndian); t.Length != 0 {
		s.announced = (s.announced + 1) % Entries
	}
}

// takeEntry decodes an entry of this end's table and clears it, if it is there.
// The entry may be one that the peer announces only with a later message and is
// writing now, of which the race detector need not know. Nothing says in what
// order the device writes its bytes, or this processor sees them. But 8 aligned
// bytes are seen whole or not at all, and neither an address nor a length is 0.
// So the entry is there when both of its halves are not 0. b begins at a
// multiple of 8 bytes.
//
//go:norace
func takeEntry(b []byte, bigEndian bool) Region {
	halves := *(*[EntryLen / 8]uint64)(unsafe.Pointer(&b[:EntryLen][0]))
	var entry [EntryLen]byte
	for i, half := range halves {
		binary.NativeEndian.PutUint64(entry[8*i:], half)
	}
	r := region(entry[:], bigEndian)
	if r.Addr == 0 || r.Length == 0 {
		return Region{}
	}
	clear(b[:EntryLen])
	return r
}

// Unread returns the number of bytes that can be read.
func (s *State) Unread() int { return s.unread }

// Next returns the offset and the length of the unread bytes before the end of
// the receive buffer. Further unread bytes are at the start of the buffer.
func (s *State) Next() (offset, n int) {
	return s.position, min(s.unread, s.size()-s.position)
}

// size returns the size of the receive buffer.
func (s *State) size() int { return int(s.config.Buffer.Length/2) * 2 }

// Consume makes the space of n unread bytes free.
func (s *State) Consume(n int) {
	s.unread -= n
	s.spare += n
	s.position = (s.position + n) % s.size()
}

// Update returns the update that is due, if any. It gives half of the receive
// buffer back to the peer, or permits more messages. The caller must have
// posted a new receive for each message that was passed to Receive.
func (s *State) Update() (p Post, due bool) {
	half := s.size() / 2
	gives, grants := s.spare >= half, s.granted-s.arrived <= uint64(s.config.Credits)/2
	if !gives && !grants || s.silent || s.control < s.cost(gives) || s.disconnected || s.ended || s.said {
		return Post{}, false
	}
	s.granted = s.arrived + uint64(s.config.Credits)
	p = s.takeControl(Update(uint16(s.granted)), gives)
	if !gives {
		return p, true
	}
	p.HasEntry = true
	p.To = Region{Addr: s.peer.Table.Addr + EntryLen*uint64(s.entry), Key: s.peer.Table.Key, Length: EntryLen}
	Region{Addr: s.config.Buffer.Addr + uint64(s.next*half), Key: s.config.Buffer.Key, Length: uint32(half)}.put(p.Entry[:], s.peer.BigEndian)
	s.entry = (s.entry + 1) % s.peer.Table.Length
	s.spare -= half
	s.next ^= 1
	if s.given[0] == 0 {
		s.given[0] = half
	} else {
		s.given[1] = half
	}
	return p, true
}

// takeControl returns a control message with the word w, and counts it as in
// flight. writes is true if the message comes with an entry.
func (s *State) takeControl(w Word, writes bool) Post {
	n := s.cost(writes)
	s.control -= n
	s.unnoticed++
	s.controls++
	back := controlBack * ID(n)
	if w == Disconnect {
		back += disconnects
	}
	return Post{Word: w, ID: s.signal(back, w.Kind() == KindControl), Slot: s.controls % ControlSlots}
}

// HasControl reports whether a control message may be posted.
func (s *State) HasControl() bool { return s.control > 0 && !s.silent }

// Silent reports whether this end must wait for the peer's first message before
// it sends.
func (s *State) Silent() bool { return s.silent }

// KeepAlive returns a request that writes no bytes and sends no word. ok is
// true only if no other request is in flight and the connection has not ended.
func (s *State) KeepAlive() (p Post, ok bool) {
	if !s.Idle() || s.silent || s.disconnected || s.said {
		return Post{}, false
	}
	s.control--
	return Post{Word: KeepAlive, ID: s.signal(controlBack, true)}, true
}

// CloseRead ends reading at this end. If due is true, p must be posted.
func (s *State) CloseRead() (p Post, due bool) {
	s.readable = false
	if s.writable {
		return Post{}, false
	}
	return s.Disconnect()
}

// CloseWrite ends writing at this end. If due is true, p must be posted.
func (s *State) CloseWrite() (p Post, due bool) {
	if !s.writable {
		return Post{}, false
	}
	s.writable = false
	if !s.readable {
		return s.Disconnect()
	}
	if s.disconnected || s.said {
		return Post{}, false
	}
	return s.takeControl(Shutdown, false), true
}

// Disconnect ends both directions. If due is true, p must be posted. HasControl
// must have returned true before Disconnect, CloseRead and CloseWrite.
func (s *State) Disconnect() (p Post, due bool) {
	s.readable, s.writable = false, false
	if s.disconnected || s.said {
		return Post{}, false
	}
	s.said = true
	return s.takeControl(Disconnect, false), true
}

// Ended reports whether the peer has announced that it sends no more data.
func (s *State) Ended() bool { return s.ended }

// Gone reports whether the peer has ended both directions. After that, the peer
// ignores data that reaches it, so this end need not wait until the data that
// it has sent has arrived.
func (s *State) Gone() bool { return s.gone }

// Disconnected reports whether both directions were ended, by one end or by
// both.
func (s *State) Disconnected() bool { return s.disconnected }
