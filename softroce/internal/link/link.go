// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/inquiry"
)

// NetworkVariable is the environment variable that names the network of this
// process, with any text. Only processes of the same network reach each other.
const NetworkVariable = "VERBENA_NETWORK"

// Prefix returns the prefix of the names of all sockets of this network.
var Prefix = sync.OnceValue(func() string {
	network := os.Getenv(NetworkVariable)
	if network == "" {
		return "@verbena-softroce/"
	}
	hash := fnv.New64a() // names of sockets are short; programs need not contain package crypto for this
	hash.Write([]byte(network))
	return fmt.Sprintf("@verbena-softroce-%016x/", hash.Sum64())
})

const (
	magic = "vsr5"

	// Slots is the number of slots, from 0 to 254. As slot 0 is not used, a
	// machine has at most 254 nodes. As a destination, 255 stands for all
	// nodes.
	Slots = 255

	// maxWaiting limits the bytes of frames that wait for a node that does
	// not read. Further frames are dropped.
	maxWaiting = 8 << 20

	// helloTimeout limits the time in which a connected process must
	// identify itself as a node.
	helloTimeout = 2 * time.Second

	// againTimeout limits the time of another attempt after a timeout.
	againTimeout = 100 * time.Millisecond

	// pollBytes is the number of bytes of frames from one node that Poll
	// handles before it goes on to the next node.
	pollBytes = ringBytes / 4
)

// Handler handles frames and events of a Link. Poll calls its methods.
type Handler interface {
	// Receive handles a frame from the node with that slot. It must not
	// keep the frame.
	Receive(slot int, frame []byte)
	// Gone handles the end of a node with which this node has exchanged
	// frames.
	Gone(slot int)
	// Resume is called when Room may return true again.
	Resume()
}

// Link connects a node to the other nodes of its machine. Send, Room, Poll and
// Flush must not be called concurrently.
type Link struct {
	slot     int
	ways     [Slots + 1]Way
	handler  Handler
	bell     *Bell
	listener net.Listener
	helpers  sync.WaitGroup

	toRing []*peer // peers whose bells Flush will ring

	mu       sync.Mutex
	peers    map[int]*peer     // keyed by slot
	waiting  int               // number of peers for which frames wait
	waited   uint64            // number of frames that have had to wait so far
	full     bool              // whether Room has returned false since the last Resume
	sources  []*source         // nodes from which frames come; the slice is replaced rather than changed in place
	gone     []int             // slots of ended nodes that Poll must report
	ending   map[int]bool      // slots of nodes that seem to have ended, until reportEnd knows whether they have left frames
	seen     [Slots]int        // number of sources that each slot has had
	ended    [Slots]int        // number of the sources in seen that have ended
	arrived  sync.Cond         // uses mu; signals that arriving has become smaller
	arrival  uint64            // number of the newest accepted connection
	arriving map[uint64]bool   // numbers of accepted connections whose ring has not become a source yet
	conns    map[net.Conn]bool // all open connections
	users    map[string]bool   // whether a socket that Names has found belongs to this user
	closed   bool
}

// peer is a node to which frames are sent.
type peer struct {
	slot    int
	ring    writer  // ring that this process writes
	bell    *Bell   // bell of the node; nil until the node has answered
	waiting []frame // frames that do not fit into the ring yet
	bytes   int     // number of bytes in waiting
	stuck   bool    // whether GiveUp was called and no frame has fitted into the ring since
	ended   int     // value of Link.ended for the slot when the peer was connected
	ringing bool    // whether the peer is in Link.toRing
	urgent  bool    // whether the peer must learn of a frame since the last Flush even if it spares acknowledgements
}

// frame is a frame that waits for room in a ring.
type frame struct {
	number uint64 // value of Link.waited after it had counted this frame
	data   []byte
}

// source is a node from which frames come.
type source struct {
	slot  int
	conn  net.Conn
	ring  reader // ring that the node writes
	bell  *Bell
	ended atomic.Bool // whether the node has ended; its ring may still have frames

	before  *source // previous source with the same slot; nil once the end of that one was reported
	removed bool    // whether all frames were handled, and the end of the node was or is being reported
}

// Reserve takes the first free slot for this process, which becomes a node at
// Start. It fails with an error matching syscall.EAGAIN if all slots are taken.
func Reserve() (*Link, error) {
	shared, err := newMemory(os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("cannot create memory to share with other processes: %w", err)
	}
	shared.close()
	slot, listener, err := reserve()
	if err != nil {
		return nil, err
	}
	l := &Link{
		slot: slot, listener: listener, peers: map[int]*peer{},
		ending: map[int]bool{}, arriving: map[uint64]bool{}, conns: map[net.Conn]bool{}, users: map[string]bool{},
	}
	l.arrived.L = &l.mu
	l.makeWays()
	l.helpers.Go(func() { l.accept(listener, l.serve) })
	return l, nil
}

// Start makes the process a node. The link rings bell when there is work for
// Poll. Start fails if the bell is not in memory that other processes can
// share.
func (l *Link) Start(handler Handler, bell *Bell) error {
	if slices.Min(bell.fds()) < 0 {
		return errors.New("cannot create memory and eventfds to share with other processes")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handler, l.bell = handler, bell
	return nil
}

// started reports whether Start was called. Until then, no other node knows
// this one.
func (l *Link) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bell != nil
}

// Slot returns the node's number, from 1 to Slots-1.
func (l *Link) Slot() int { return l.slot }

// Close frees the resources of the link. Afterwards this process is no node of
// the network. Close must not be called concurrently with another method.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	err := l.listener.Close()
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.helpers.Wait()
	for slot, p := range l.peers {
		l.drop(slot, p)
	}
	for _, s := range l.sources {
		s.close()
	}
	return err
}

// accept accepts connections of other processes. For each that is a node, it
// calls serve in a new goroutine. Programs pass the name of this function to
// goleak, so it must not change (see docs/softroce.md).
func (l *Link) accept(listener net.Listener, serve func(c *net.UnixConn, slot int, ready func())) {
	for {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example, too many files are open
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !l.open(c) {
			return
		}
		ready := l.arrive()
		l.helpers.Go(func() {
			defer l.closeConn(c)
			defer ready()
			unix := c.(*net.UnixConn)
			if slot, err := l.exchangeSlots(unix, helloTimeout); err == nil {
				serve(unix, slot, ready)
			}
		})
	}
}

// arrive records that a connection was accepted, so that await waits for it.
// The caller must call ready after the connection's ring has become a source,
// or when it is clear that the connection has no ring.
func (l *Link) arrive() (ready func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrival++
	number := l.arrival
	l.arriving[number] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.arriving, number)
		l.arrived.Broadcast()
	}
}

// await waits until the rings of all nodes that have connected so far are
// sources. Even a node that has already ended may have left frames in its ring.
func (l *Link) await() {
	// Connections are accepted in order. So all earlier connections are
	// recorded once the link has answered and closed this one.
	if c, _, err := l.dial(fmt.Sprint("node/", l.slot)); err == nil {
		waitForEnd(c)
		c.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for last := l.arrival; slices.ContainsFunc(slices.Collect(maps.Keys(l.arriving)), func(n uint64) bool { return n <= last }); {
		l.arrived.Wait()
	}
}

// open records an open connection. If the link is closed, open closes the
// connection and returns false.
func (l *Link) open(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return false
	}
	l.conns[c] = true
	return true
}

// closeConn closes a connection that open has recorded.
func (l *Link) closeConn(c net.Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	c.Close()
}

// exchangeSlots sends this node's slot to a connected process, and returns the
// slot of that process, which it waits for as inTime does.
func (l *Link) exchangeSlots(c *net.UnixConn, limit time.Duration) (slot int, err error) {
	if err := inquiry.SameUser(c); err != nil {
		return 0, err
	}
	_, _ = c.Write(append([]byte(magic), byte(l.slot))) // does not block; an error is ignored: if the node has ended, its slot and frames can still be read
	return inTime(c, limit, readSlot)
}

// inTime calls read with a limit on the time that it waits. If the time is
// over, inTime calls read again, for a short time: this process itself may have
// stood still, and what came meanwhile waits in the connection. The deadline
// that inTime sets also applies to later reads.
func inTime[T any](c *net.UnixConn, limit time.Duration, read func(*net.UnixConn) (T, error)) (v T, err error) {
	for _, limit := range []time.Duration{limit, againTimeout} {
		if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
			return v, err
		}
		if v, err = read(c); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return v, err
}

// readSlot returns the slot with which a connected process identifies itself.
func readSlot(c *net.UnixConn) (slot int, err error) {
	var hello [len(magic) + 1]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return 0, err
	}
	slot = int(hello[len(magic)])
	if string(hello[:len(magic)]) != magic || slot == 0 || slot >= Slots {
		return 0, fmt.Errorf("the peer process is not a node of this version of the protocol: %w", syscall.ECONNREFUSED)
	}
	return slot, nil
}

// A node that wants to send frames connects to the receiving node. It sends the
// descriptors of a ring and of its own bell, and may then write frames to the
// ring and even end, before the receiver has taken the ring. It receives the
// descriptors of the receiver's bell. Nothing else is sent; the end of the
// connection shows that the other node has ended.

// sendFDs sends descriptors over a connection.
func sendFDs(c *net.UnixConn, fds ...int) error {
	_, _, err := c.WriteMsgUnix([]byte{byte(len(fds))}, syscall.UnixRights(fds...), nil)
	return err
}

// receiveFDs receives n descriptors from a connection.
func receiveFDs(c *net.UnixConn, n int) ([]int, error) {
	var b [1]byte
	control := make([]byte, syscall.CmsgSpace(4*16))
	_, size, _, _, err := c.ReadMsgUnix(b[:], control)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(control[:size])
	if err != nil {
		return nil, err
	}
	var all []int
	for _, m := range messages {
		if fds, err := syscall.ParseUnixRights(&m); err == nil {
			all = append(all, fds...)
		}
	}
	if len(all) != n {
		for _, fd := range all {
			syscall.Close(fd)
		}
		return nil, fmt.Errorf("a node sent %d descriptors instead of %d", len(all), n)
	}
	return all, nil
}

// serve receives the ring of a node that has connected, and waits until the
// node ends. It calls ready once the ring is a source.
func (l *Link) serve(c *net.UnixConn, slot int, ready func()) {
	if slot == l.slot || !l.started() {
		return // a node that connects to itself, as await does, sends no ring
	}
	s, err := l.receiveRing(c, slot)
	if err != nil {
		return
	}
	l.mu.Lock()
	for _, o := range l.sources {
		if o.slot == slot { // the end of the previous node with this slot was not noticed yet
			o.ended.Store(true)
			s.before = o
		}
	}
	l.sources = append(slices.Clone(l.sources), s)
	l.seen[slot]++
	l.mu.Unlock()
	ready()
	l.bell.Ring() // there may be frames
	waitForEnd(c)
	s.ended.Store(true)
	l.bell.Ring()
}

// receiveRing receives the ring and the bell of the node with that slot, and
// sends this node's bell.
func (l *Link) receiveRing(c *net.UnixConn, slot int) (*source, error) {
	fds, err := inTime(c, helloTimeout, func(c *net.UnixConn) ([]int, error) { return receiveFDs(c, 1+bellFDs) })
	if err != nil {
		return nil, err
	}
	s := &source{slot: slot, conn: c}
	s.ring.memory, err = openMemory(fds[0], ringStart+ringBytes)
	if err != nil {
		for _, fd := range fds[1:] {
			syscall.Close(fd)
		}
		return nil, err
	}
	s.ring.memory.closeFD()
	if s.bell, err = openBell(fds[1:]); err != nil {
		s.ring.memory.close()
		return nil, err
	}
	_ = sendFDs(c, l.bell.fds()...) // fails if the node has ended
	return s, nil
}

func (s *source) close() {
	s.ring.memory.close()
	s.bell.close()
}

// waitForEnd returns when the other end closes the connection, or violates the
// protocol by sending something. Programs pass the name of this function to
// goleak, so it must not change (see docs/softroce.md).
func waitForEnd(c *net.UnixConn) {
	var b [1]byte
	if c.SetDeadline(time.Time{}) == nil {
		c.Read(b[:])
	}
}

// connect connects to the node with that slot. It does not wait for the answer.
// The caller holds l.mu.
func (l *Link) connect(slot int) (*peer, error) {
	conn, err := dialFirst(fmt.Sprintf("node/%d", slot))
	if err != nil {
		return nil, err
	}
	ring, err := newMemory(ringStart + ringBytes)
	if err == nil {
		_, err = conn.Write(append([]byte(magic), byte(l.slot)))
	}
	if err == nil {
		err = sendFDs(conn, append([]int{ring.fd}, l.bell.fds()...)...)
	}
	if err != nil {
		ring.close()
		conn.Close()
		return nil, err
	}
	ring.closeFD()
	p := &peer{slot: slot, ring: writer{memory: ring}, ended: l.ended[slot]}
	l.conns[conn] = true
	l.peers[slot] = p
	l.helpers.Go(func() { l.awaitPeer(p, conn) })
	return p, nil
}

// awaitPeer receives a peer's bell, and then waits until the peer's process
// ends.
func (l *Link) awaitPeer(p *peer, conn *net.UnixConn) {
	defer l.closeConn(conn)
	if bell, err := receiveBell(conn, p.slot); err == nil {
		l.mu.Lock()
		p.bell = bell
		l.mu.Unlock()
		bell.Ring() // for frames that were sent before the bell was known
		waitForEnd(conn)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.drop(p.slot, p)
	l.full = true // queue pairs that wait for room in this ring need not wait any more
	l.bell.Ring()
	if l.ended[p.slot] == p.ended { // otherwise, the end was reported already
		l.reportEnd(p.slot)
	}
}

// receiveBell waits for the answer of the node with that slot. It sets no time
// limit: a stopped process answers when it continues, and the connection ends
// when the process ends.
func receiveBell(conn *net.UnixConn, slot int) (*Bell, error) {
	other, err := readSlot(conn)
	if err != nil {
		return nil, err
	}
	if other != slot {
		return nil, fmt.Errorf("the process found as node %d identifies itself as node %d", slot, other)
	}
	fds, err := receiveFDs(conn, bellFDs)
	if err != nil {
		return nil, err
	}
	return openBell(fds)
}

// reportEnd makes Poll report the end of a node to which this node has sent
// frames. If that node has also sent frames, Poll reports its end after its
// last frame. The caller holds l.mu.
func (l *Link) reportEnd(slot int) {
	hasSource := func() bool { return slices.ContainsFunc(l.sources, func(s *source) bool { return s.slot == slot }) }
	if l.closed || l.ending[slot] || hasSource() {
		return
	}
	l.ending[slot] = true
	before := l.seen[slot]
	l.helpers.Go(func() {
		l.await()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.ending, slot)
		if l.seen[slot] == before {
			l.gone = append(l.gone, slot)
			l.bell.Ring()
		}
	})
}

// drop removes a peer and frees its memory.
func (l *Link) drop(slot int, p *peer) {
	if len(p.waiting) > 0 {
		l.waiting--
	}
	delete(l.peers, slot)
	p.ring.memory.close()
	if p.bell != nil {
		p.bell.close()
	}
}

// ringLater makes the next Flush ring the bell of a peer. urgent says whether
// more than an acknowledgement was sent.
func (l *Link) ringLater(p *peer, urgent bool) {
	p.urgent = p.urgent || urgent
	if !p.ringing {
		p.ringing = true
		l.toRing = append(l.toRing, p)
	}
}

// Flush rings the bells of the nodes to which Send and Poll have sent frames. A
// node that got nothing but acknowledgements, and spares them, finds them when
// it next looks for frames. The caller should do more urgent work before, as a
// woken node may take this thread's processor.
func (l *Link) Flush() {
	if len(l.toRing) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.toRing {
		p.ringing = false
		if l.peers[p.slot] == p { // the node has not ended
			p.ringBell()
		}
		p.urgent = false
	}
	clear(l.toRing)
	l.toRing = l.toRing[:0]
}

// ringBell rings the bell of p, unless p spares what was sent and there is room
// for more. If p has not sent its bell yet, awaitPeer rings it later.
func (p *peer) ringBell() {
	if p.bell != nil && (p.urgent || p.ring.isFilling() || !p.bell.sparesAcks()) {
		p.bell.Ring()
	}
}

// Send sends a frame of size bytes, which fill writes. If fill returns false,
// no frame is sent. urgent is false for an acknowledgement. Send does not
// block. It drops a frame to a node that does not exist, or that has too many
// bytes waiting.
func (l *Link) Send(slot, size int, urgent bool, fill func(frame []byte) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || size > MaxFrame || slot < 0 || slot >= Slots { // a program can send to any queue pair number
		return
	}
	p := l.peers[slot]
	if p == nil {
		var err error
		if p, err = l.connect(slot); err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) {
				l.reportEnd(slot)
			}
			return // the frame is lost, for example if descriptors are used up
		}
	}
	if len(p.waiting) == 0 {
		if b := p.ring.begin(size); b != nil {
			if fill(b) {
				p.ring.end(size)
				l.ringLater(p, urgent)
			}
			return
		}
	}
	if p.bytes+size > maxWaiting {
		return
	}
	b := make([]byte, size)
	if !fill(b) {
		return
	}
	if len(p.waiting) == 0 {
		l.waiting++
	}
	l.waited++
	p.waiting = append(p.waiting, frame{l.waited, b})
	p.bytes += size
	l.send(p)
}

// Room reports whether the next frame to the node with that slot need not wait.
// If Room returns false, Resume is called when it may return true again.
func (l *Link) Room(slot int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[slot]
	if p == nil || len(p.waiting) == 0 && p.ring.want() {
		return true
	}
	l.full = true
	return false
}

// send moves a peer's waiting frames to the ring, as far as they fit.
func (l *Link) send(p *peer) {
	for len(p.waiting) > 0 && p.ring.want() {
		sent := 0
		for _, f := range p.waiting {
			b := p.ring.begin(len(f.data))
			if b == nil {
				break
			}
			copy(b, f.data)
			p.ring.end(len(f.data))
			p.bytes -= len(f.data)
			sent++
		}
		l.ringLater(p, true)
		p.waiting = slices.Delete(p.waiting, 0, sent)
		p.stuck = p.stuck && sent == 0
		if len(p.waiting) == 0 {
			p.waiting = nil
			l.waiting--
		}
	}
}

// Poll handles what has arrived, and sends waiting frames for which there is
// room now. more reports whether work is left.
func (l *Link) Poll() (more bool) {
	l.mu.Lock()
	if l.waiting > 0 {
		for _, p := range l.peers {
			l.send(p)
		}
	}
	sources, gone, full := l.sources, l.gone, l.full
	l.gone, l.full = nil, false
	l.mu.Unlock()
	if full {
		l.handler.Resume()
	}
	for _, slot := range gone {
		l.handler.Gone(slot)
	}
	for _, s := range sources {
		if s.before != nil && !s.before.removed {
			continue // the end of s.before must be reported first; more is true already
		}
		s.before = nil
		ended := s.ended.Load() // if true, the node writes no more frames
		left, err := l.receive(s)
		switch {
		case err != nil:
			s.conn.Close()
		case left || !ended:
			more = more || left
			continue
		}
		l.remove(s)
		l.handler.Gone(s.slot) // before Poll handles frames of the next node with this slot
	}
	return more
}

// receive handles frames of a node. more reports whether frames may be left.
func (l *Link) receive(s *source) (more bool, err error) {
	for start := s.ring.read; s.ring.read-start < pollBytes; {
		frame, err := s.ring.next()
		if err != nil {
			return false, err
		}
		if frame == nil {
			l.give(s)
			return false, nil
		}
		l.handler.Receive(s.slot, frame)
		if s.ring.read-s.ring.given >= giveBytes {
			l.give(s)
		}
	}
	return true, nil
}

// give frees the room of those frames in s's ring that were handled. If the
// node waits for room, give rings its bell.
func (l *Link) give(s *source) {
	if s.ring.give() {
		s.bell.Ring()
	}
}

// remove removes a source that has ended.
func (l *Link) remove(s *source) {
	l.mu.Lock()
	l.sources = slices.DeleteFunc(slices.Clone(l.sources), func(o *source) bool { return o == s })
	l.ended[s.slot]++
	l.mu.Unlock()
	s.removed = true
	s.close()
}

// Announce opens a socket whose name shows other processes what this one does.
// Find does not find the name. Closing the result frees the name.
func Announce(name string) (io.Closer, error) {
	return net.Listen("unix", Prefix()+name+"/"+newToken())
}
