// SPDX-License-Identifier: Apache-2.0

package protocol

// Constants of the protocol, and of librdmacm.
const (
	Entries      = 2       // of the own target table
	ControlSlots = 4       // requests that are kept for messages other than data
	FirstData    = 2048    // length of the first message of a long write
	LongData     = 1 << 16 // length of its longest
)

// A Config is what an end has.
type Config struct {
	BigEndian  bool   // the byte order of this processor
	SendQueue  int    // requests that can be on their way
	Credits    uint16 // messages that can arrive without being looked at; receives are posted for them and a few others
	SendBuffer int    // bytes
	Table      Region // the address and the key count
	Buffer     Region // for what arrives; of an even length
	Prompt     bool   // Complete is to be told of each request, not of some for those before them
}

// A State is one end of a connection.
type State struct {
	config Config
	peer   Hello

	// Sending.
	sent      uint16 // number of data messages
	limit     uint16 // where sent must stop
	target    [Entries]Region
	using     int // entry of target
	announced int // entry of target that the peer will replace next
	slots     int // requests for data
	free      int // bytes of the send buffer
	place     int // where in it the next bytes go
	quiet     ID  // what the requests since the last signaled one give back

	// Control messages.
	control   int // free slots
	controls  int // number of messages
	unnoticed int // number of them since the peer's last update

	// Receiving.
	arrived  uint64 // number of data messages
	granted  uint64 // how many may have arrived
	given    [2]int // bytes left in the halves that the peer has
	unread   int    // bytes
	position int    // of the first unread byte in the buffer
	spare    int    // bytes to give back
	next     int    // the half to give back
	entry    uint32 // of the peer's table, for the next half

	// Ending.
	readable, writable bool // as the ends have closed them
	ended              bool // the peer will send no more data
	disconnected       bool // the connection is at its end
	gone               bool // the peer has said that it neither reads nor writes
	said               bool // this end has
}

// New returns the state of an end before it connects.
func New(c Config) *State {
	half := int(c.Buffer.Length / 2)
	return &State{
		config: c, slots: c.SendQueue - ControlSlots, control: ControlSlots, free: c.SendBuffer, announced: 1,
		granted: uint64(c.Credits), given: [2]int{half, 0}, spare: half, next: 1, readable: true, writable: true,
	}
}

// Hello returns what to tell the peer.
func (s *State) Hello() Hello {
	h := Hello{BigEndian: s.config.BigEndian, Credits: s.config.Credits, Table: s.config.Table, Buffer: s.config.Buffer}
	h.Table.Length, h.Buffer.Length = Entries, s.config.Buffer.Length/2
	return h
}

// Connect takes what the peer has told. It must come before everything below.
func (s *State) Connect(peer Hello) {
	s.peer = peer
	s.limit, s.target[0], s.entry = peer.Credits, peer.Buffer, 1%peer.Table.Length
}

// A Post is a request to post.
type Post struct {
	Word Word
	To   Region // memory of the peer to write to, if there is something to write

	// ID is what to pass to Complete when the request has completed, and with it all before it; 0 if its completion need not be known.
	ID ID

	// For data: where in the send buffer it is. It may go on at the start of the buffer.
	Offset, Len int

	// For an update: the entry to write, unless HasEntry is false.
	HasEntry bool
	Entry    [EntryLen]byte
	Slot     int // below ControlSlots; no other request that is on its way has the same
}

// An ID says what the completion of a request gives back, for it and for those before it whose completions need not be known.
type ID uint64

// The parts of an ID. The largest send buffer has 1 GiB, and a queue 65535 requests.
const (
	bytesBack   ID = 1
	slotBack    ID = 1 << 31
	controlBack ID = 1 << 47
	disconnects ID = 1 << 50 // the request ends the connection

	// IDBits is how many bits an ID has.
	IDBits = 51
)

func (id ID) bytes() int    { return int(id & (slotBack - 1)) }
func (id ID) slots() int    { return int(id & (controlBack - 1) / slotBack) }
func (id ID) controls() int { return int(id & (disconnects - 1) / controlBack) }

// signal returns the ID of a request that gives something back. It is 0 if that can wait for the completion of a later one, because enough
// is free until then. So an end that waits for an answer is not woken up for its question, too.
func (s *State) signal(back ID, must bool) ID {
	s.quiet += back
	q := s.quiet
	if !must && !s.config.Prompt && q.bytes() <= (s.config.SendBuffer-FirstData)/4 &&
		q.slots() <= (s.config.SendQueue-ControlSlots)/4 && q.controls() <= ControlSlots/2 {
		return 0
	}
	s.quiet = 0
	return q
}

// canSend returns how many bytes may be sent in one message. The peer may have as many receives as credits. So a few of those
// are left for control messages that it has perhaps not looked at: without a receive, one would hold up all that follows,
// for as long as the peer's RNR timer says, which is 655 ms for librdmacm.
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

// Room returns how many of n bytes fit into a message that may be sent now, and 0 if none may. It does not shrink before Send is called,
// unless the connection ends.
func (s *State) Room(n int) int {
	if s.free < min(n, FirstData) {
		return 0
	}
	return min(n, s.free, s.canSend())
}

// RoomOutside is Room for bytes that are not in the send buffer.
func (s *State) RoomOutside(n int) int { return min(n, s.canSend()) }

// Offset returns where in the send buffer the next bytes belong.
func (s *State) Offset() int { return s.place }

// Send takes n bytes of the send buffer, as many as Room has returned or fewer, but at least 1.
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

// Complete takes the completion of a request.
func (s *State) Complete(id ID) {
	s.free += id.bytes()
	s.slots += id.slots()
	s.control += id.controls()
	if id&disconnects != 0 {
		s.disconnected = true
	}
}

// Buffered returns how many bytes of the send buffer are in use, or may be.
func (s *State) Buffered() int { return s.config.SendBuffer - s.free }

// Idle reports whether all requests with an ID have completed.
func (s *State) Idle() bool {
	return s.slots+s.control+s.quiet.slots()+s.quiet.controls() == s.config.SendQueue
}

// Receive takes a message: its word, and how many bytes were written with it. The table is the own target table, which the peer may
// be writing to. An error matches ErrViolation; the connection is then over.
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

// count counts a message that takes a credit.
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

// Unread returns how many bytes can be read.
func (s *State) Unread() int { return s.unread }

// Next returns where in the receive buffer the unread bytes are, up to its end.
func (s *State) Next() (offset, n int) {
	return s.position, min(s.unread, s.size()-s.position)
}

func (s *State) size() int { return int(s.config.Buffer.Length/2) * 2 }

// Consume says that n of the unread bytes are not needed any more.
func (s *State) Consume(n int) {
	s.unread -= n
	s.spare += n
	s.position = (s.position + n) % s.size()
}

// Update returns the update that is due, if one is: it gives back half of the buffer, or lets the peer send more messages. Receives must
// have been posted in place of those of all messages passed to Receive.
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

// KeepAlive returns a request to write nothing to the peer, without a word, if it may be posted and no other is on its way.
func (s *State) KeepAlive() (p Post, ok bool) {
	if !s.Idle() || s.disconnected || s.said {
		return Post{}, false
	}
	s.control--
	return Post{Word: KeepAlive, ID: s.signal(controlBack, true)}, true
}

// CloseRead says that this end does not read any more. If due, there is a word to send.
func (s *State) CloseRead() (p Post, due bool) {
	s.readable = false
	if s.writable {
		return Post{}, false
	}
	return s.Disconnect()
}

// CloseWrite says that this end writes no more. If due, there is a word to send.
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

// Disconnect ends both directions. If due, there is a word to send. Like those of the functions above, it takes a slot, which HasControl
// must have said is there.
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

// Gone reports whether the peer has ended both directions, and so does not care about what has not arrived.
func (s *State) Gone() bool { return s.gone }

// Disconnected reports whether the connection was ended in an orderly way: both directions, by either end or each by its own.
func (s *State) Disconnected() bool { return s.disconnected }
