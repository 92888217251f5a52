// SPDX-License-Identifier: Apache-2.0

package protocol

// Constants of the protocol, and of librdmacm.
const (
	Entries      = 2       // number of entries in this end's target table, where the peer writes the addresses of its receive buffer
	ControlSlots = 4       // number of requests that are reserved for messages other than data
	FirstData    = 1 << 14 // length of the first message of a long write, which the device sends while the next piece is copied
	LongData     = 1 << 16 // length of the longest message of a long write
	leastData    = 2048    // number of free bytes in the send buffer that a message needs, unless it is shorter
)

// A Config describes an end.
type Config struct {
	BigEndian  bool   // the byte order of this processor
	SendQueue  int    // number of requests that can be in flight
	Credits    uint16 // number of messages that can arrive without being handled; there are receives for them and a few more
	SendBuffer int    // size in bytes
	Table      Region // this end's target table (see Entries); only the address and the key are used
	Buffer     Region // the receive buffer, of an even length
	Prompt     bool   // whether Complete must learn of each request by itself, not of several at once
}

// A State is one end of a connection.
type State struct {
	config Config
	peer   Hello

	// Sending.
	sent      uint16 // number of data messages
	limit     uint16 // value of sent that the peer permits at most
	target    [Entries]Region
	using     int // index in target of the entry that the next data goes to
	announced int // index in target of the entry that the peer replaces next
	slots     int // number of free requests for data
	free      int // number of free bytes in the send buffer
	place     int // offset of the next bytes in the send buffer
	quiet     ID  // resources that the completion of the next signaled request frees, too

	// Control messages.
	control   int // number of free requests for control messages
	controls  int // number of control messages sent so far
	unnoticed int // number of control messages sent since the peer's last update

	// Receiving.
	arrived  uint64 // number of data messages
	granted  uint64 // value of arrived that this end permits at most
	given    [2]int // numbers of bytes left in the halves of the buffer that the peer owns
	unread   int    // number of unread bytes in the buffer
	position int    // offset of the first unread byte in the buffer
	spare    int    // number of bytes to give back to the peer
	next     int    // index of the half of the buffer to give back
	entry    uint32 // index of the entry in the peer's target table for the next half

	// Ending.
	readable, writable bool // whether this end still reads and writes
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
	}
}

// Hello returns this end's Hello.
func (s *State) Hello() Hello {
	h := Hello{BigEndian: s.config.BigEndian, Credits: s.config.Credits, Table: s.config.Table, Buffer: s.config.Buffer}
	h.Table.Length, h.Buffer.Length = Entries, s.config.Buffer.Length/2
	return h
}

// Connect takes the peer's Hello. The methods below may be called only after
// it.
func (s *State) Connect(peer Hello) {
	s.peer = peer
	s.limit, s.target[0], s.entry = peer.Credits, peer.Buffer, 1%peer.Table.Length
}

// A Post is a request to be posted.
type Post struct {
	Word Word
	To   Region // the peer's memory to write to, if any

	// ID is the argument of Complete when the request, and with it all earlier
	// ones, has completed. If it is 0, Complete need not be called.
	ID ID

	// The offset and length of data in the send buffer. The data may wrap
	// around to the start of the buffer.
	Offset, Len int

	// The entry that an update writes, if HasEntry is true.
	HasEntry bool
	Entry    [EntryLen]byte
	Slot     int // below ControlSlots; no other request in flight has the same
}

// An ID encodes the resources that the completion of a request frees. A request
// with the ID 0 is not signaled; the ID of the next signaled request includes
// its resources.
type ID uint64

// The parts of an ID. The largest send buffer has 1 GiB, and the largest queue
// 65535 requests.
const (
	bytesBack   ID = 1
	slotBack    ID = 1 << 31
	controlBack ID = 1 << 47
	disconnects ID = 1 << 50 // the request ends the connection

	// IDBits is the number of bits of an ID.
	IDBits = 51
)

func (id ID) bytes() int    { return int(id & (slotBack - 1)) }
func (id ID) slots() int    { return int(id & (controlBack - 1) / slotBack) }
func (id ID) controls() int { return int(id & (disconnects - 1) / controlBack) }

// signal returns the ID of a request that uses the resources back. The ID is 0
// if the request need not be signaled, because few resources wait for a
// completion. This keeps an end that waits for an answer from being woken by
// the completion of its own request. If must is true, the ID is not 0.
func (s *State) signal(back ID, must bool) ID {
	s.quiet += back
	q := s.quiet
	if !must && !s.config.Prompt && q.bytes() <= (s.config.SendBuffer-leastData)/4 &&
		q.slots() <= (s.config.SendQueue-ControlSlots)/4 && q.controls() <= ControlSlots/2 {
		return 0
	}
	s.quiet = 0
	return q
}

// canSend returns the number of bytes that may be sent in one message. The peer
// may have no more receives than credits. So a few credits are kept for control
// messages that the peer may not have handled. A control message without a
// receive would hold up all later messages for the peer's RNR timer, which is
// 655 ms with librdmacm.
func (s *State) canSend() int {
	window, kept := s.limit-s.sent, 0
	if s.peer.Credits >= 4*ControlSlots {
		kept = min(s.unnoticed, ControlSlots)
	}
	if !s.writable || s.disconnected || s.slots == 0 || int(window) <= kept {
		return 0
	}
	return int(min(s.target[s.using].Length, MaxData))
}

// Room returns how many of n bytes may be sent in one message now; 0 if none.
// It does not shrink before Send is called, unless the connection ends.
func (s *State) Room(n int) int {
	if s.free < min(n, leastData) {
		return 0
	}
	return min(n, s.free, s.canSend())
}

// RoomOutside is Room for bytes that are not in the send buffer.
func (s *State) RoomOutside(n int) int { return min(n, s.canSend()) }

// Offset returns the place of the next bytes in the send buffer.
func (s *State) Offset() int { return s.place }

// Send sends n bytes of the send buffer, where n is at least 1 and at most what
// Room returned.
func (s *State) Send(n int) Post {
	p := s.send(n)
	p.ID = s.signal(slotBack+bytesBack*ID(n), false)
	p.Offset = s.place
	s.place = (s.place + n) % s.config.SendBuffer
	s.free -= n
	return p
}

// SendOutside is Send for bytes that are not in the send buffer.
func (s *State) SendOutside(n int) Post {
	p := s.send(n)
	p.ID = s.signal(slotBack, true)
	return p
}

func (s *State) send(n int) Post {
	t := &s.target[s.using]
	p := Post{Word: Data(n), To: *t, Len: n}
	s.sent++
	s.slots--
	t.Addr += uint64(n)
	t.Length -= uint32(n)
	if t.Length == 0 {
		s.using = (s.using + 1) % Entries
	}
	return p
}

// Complete handles the completion of a request.
func (s *State) Complete(id ID) {
	s.free += id.bytes()
	s.slots += id.slots()
	s.control += id.controls()
	if id&disconnects != 0 {
		s.disconnected = true
	}
}

// Buffered returns the number of bytes of the send buffer that are or may be in
// use.
func (s *State) Buffered() int { return s.config.SendBuffer - s.free }

// Idle reports whether all requests with an ID have completed.
func (s *State) Idle() bool {
	return s.slots+s.control+s.quiet.slots()+s.quiet.controls() == s.config.SendQueue
}

// Receive handles a message: its word, and the number of bytes written with it.
// table is this end's target table, which the peer may be writing to. If the
// peer has broken the protocol, the error matches ErrViolation, and the
// connection is over.
func (s *State) Receive(w Word, length int, table []byte) error {
	if s.disconnected && w.Kind() != KindData {
		return nil
	}
	switch w.Kind() {
	case KindData:
		return s.receiveData(w, length)
	case KindUpdate:
		return s.receiveUpdate(w, length, table)
	case KindIOMap:
		return s.count(w)
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
	return violation("%v", w)
}

func (s *State) receiveData(w Word, length int) error {
	n := w.Value()
	switch {
	case s.ended:
		return violation("%v after the peer has ended its data", w)
	case n == 0 || n != length:
		return violation("%v, and %d were written", w, length)
	case n > s.given[0]:
		return violation("%v, where there is room for %d", w, s.given[0])
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

// count counts a message that uses a credit.
func (s *State) count(w Word) error {
	if s.arrived == s.granted {
		return violation("%v beyond the limit of %d messages", w, s.granted)
	}
	s.arrived++
	return nil
}

func (s *State) receiveUpdate(w Word, length int, table []byte) error {
	if length != 0 && length != EntryLen {
		return violation("%v, and %d bytes were written", w, length)
	}
	s.limit, s.unnoticed = uint16(w), 0
	if length == 0 {
		return nil
	}
	t := &s.target[s.announced]
	if t.Length != 0 {
		return violation("entry %d of the target table changed, and has %d bytes left", s.announced, t.Length)
	}
	*t = region(table[s.announced*EntryLen:], s.config.BigEndian)
	if t.Length == 0 {
		return violation("entry %d of the target table is empty", s.announced)
	}
	s.announced = (s.announced + 1) % Entries
	return nil
}

// Unread returns the number of bytes that can be read.
func (s *State) Unread() int { return s.unread }

// Next returns the offset and length of the unread bytes in the receive buffer,
// up to its end.
func (s *State) Next() (offset, n int) {
	return s.position, min(s.unread, s.size()-s.position)
}

func (s *State) size() int { return int(s.config.Buffer.Length/2) * 2 }

// Consume frees the space of n unread bytes.
func (s *State) Consume(n int) {
	s.unread -= n
	s.spare += n
	s.position = (s.position + n) % s.size()
}

// Update returns the update that is due, if any. It gives back half of the
// buffer, or lets the peer send more messages. All messages passed to Receive
// must have been replaced by newly posted receives.
func (s *State) Update() (p Post, due bool) {
	half := s.size() / 2
	gives, grants := s.spare >= half, s.granted-s.arrived <= uint64(s.config.Credits)/2
	if !gives && !grants || s.control == 0 || s.disconnected || s.ended || s.said {
		return Post{}, false
	}
	s.granted = s.arrived + uint64(s.config.Credits)
	p = s.takeControl(Update(uint16(s.granted)))
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

// takeControl returns a control message.
func (s *State) takeControl(w Word) Post {
	s.control--
	s.unnoticed++
	s.controls++
	back := controlBack
	if w == Disconnect {
		back += disconnects
	}
	return Post{Word: w, ID: s.signal(back, w.Kind() == KindControl), Slot: s.controls % ControlSlots}
}

// HasControl reports whether a control message can be sent.
func (s *State) HasControl() bool { return s.control > 0 }

// KeepAlive returns a request to write no bytes, without a word, if it may be
// posted and no other request is in flight.
func (s *State) KeepAlive() (p Post, ok bool) {
	if !s.Idle() || s.disconnected || s.said {
		return Post{}, false
	}
	s.control--
	return Post{Word: KeepAlive, ID: s.signal(controlBack, true)}, true
}

// CloseRead ends reading at this end. If due is true, the Post must be posted.
func (s *State) CloseRead() (p Post, due bool) {
	s.readable = false
	if s.writable {
		return Post{}, false
	}
	return s.Disconnect()
}

// CloseWrite ends writing at this end. If due is true, the Post must be posted.
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
	return s.takeControl(Shutdown), true
}

// Disconnect ends both directions. If due is true, the Post must be posted.
// Like CloseRead and CloseWrite, it needs a free slot: HasControl must have
// returned true.
func (s *State) Disconnect() (p Post, due bool) {
	s.readable, s.writable = false, false
	if s.disconnected || s.said {
		return Post{}, false
	}
	s.said = true
	return s.takeControl(Disconnect), true
}

// Ended reports whether the peer has ended its data.
func (s *State) Ended() bool { return s.ended }

// Gone reports whether the peer has ended both directions. The peer then
// ignores data that has not reached it yet, so this end need not wait for its
// arrival.
func (s *State) Gone() bool { return s.gone }

// Disconnected reports whether the connection was ended in an orderly way: both
// directions by one end, or each direction by its own end.
func (s *State) Disconnected() bool { return s.disconnected }
