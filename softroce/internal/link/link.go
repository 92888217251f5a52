// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// NetworkVariable is the environment variable with the name of the network that this process is in. It sees the nodes of
// that network only. Any text will do.
const NetworkVariable = "VERBENA_NETWORK"

// Prefix returns how the names of this network's sockets begin.
var Prefix = sync.OnceValue(func() string {
	network := os.Getenv(NetworkVariable)
	if network == "" {
		return "@verbena-softroce/"
	}
	sum := sha256.Sum256([]byte(network)) // names of sockets are short
	return fmt.Sprintf("@verbena-softroce-%x/", sum[:8])
})

const (
	magic = "vsr2"

	// Slots is how many nodes a machine can have, plus one: slot 0 is nobody's. The number
	// 255 stands for all in the number of the queue pair of multicasts.
	Slots = 255

	// maxWaiting is how many bytes wait for a node that does not read. More are dropped, as a
	// network drops what it has no room for.
	maxWaiting = 8 << 20

	// A node that does not say who it is within this time is none.
	helloTimeout = 2 * time.Second

	// fair is how many bytes of one node's frames Poll passes on before those of the next.
	fair = ringBytes / 4
)

// Handler receives what arrives, during Poll.
type Handler interface {
	// Receive takes a frame from another node. It must not keep the frame.
	Receive(slot int, frame []byte)
	// Gone tells that a node that a frame came from, or went to, has ended.
	Gone(slot int)
	// Resume tells that Room may report true again.
	Resume()
}

// Link is a node's end of its connections with the other nodes. Its owner calls Send, Room, Poll and Flush, one at a time.
type Link struct {
	slot     int
	ways     [Slots + 1]Way
	handler  Handler
	bell     *Bell
	listener net.Listener
	helpers  sync.WaitGroup

	called []*peer // whose bells Flush rings

	mu       sync.Mutex
	peers    map[int]*peer
	waiting  int               // peers that frames wait for
	waited   uint64            // frames that have had to wait
	full     bool              // there was no room for a peer since Resume was called last
	sources  []*source         // replaced when it changes
	gone     []int             // nodes that are gone
	losing   map[int]bool      // nodes that may be about to be
	seen     [Slots]int        // how many sources there were of each slot
	ended    [Slots]int        // how many of them have ended
	arrived  sync.Cond         // mu: arriving has changed
	arrival  uint64            // number of the connection that was accepted last
	arriving map[uint64]bool   // connections whose ring is not a source yet
	conns    map[net.Conn]bool // all that are open
	users    map[string]bool   // sockets that Names has seen, and whether they are of this user
	closed   bool
}

// peer is a node that frames are sent to.
type peer struct {
	slot    int
	ring    writer
	bell    *Bell   // nil until the node has answered
	waiting []frame // that had no room
	bytes   int     // of them
	stuck   bool    // none has found room since GiveUp
	ended   int     // Link.ended of the slot, in the beginning
	called  bool    // is in Link.called
}

// frame is a frame that waits for room.
type frame struct {
	number uint64 // Link.waited, with this one
	data   []byte
}

// source is a node that frames come from.
type source struct {
	slot  int
	conn  net.Conn
	ring  reader
	bell  *Bell
	ended atomic.Bool // the node has; frames of it may be left

	before  *source // the node that had the slot before, as far as is known
	removed bool    // nothing is left, and its end is about to be told
}

// Reserve takes the first free slot for this process, which becomes a node with
// Start. The error matches syscall.EAGAIN if all slots are taken.
func Reserve() (*Link, error) {
	shared, err := newMemory(os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("no memory can be shared with other processes: %w", err)
	}
	shared.close()
	slot, listener, err := reserve()
	if err != nil {
		return nil, err
	}
	l := &Link{
		slot: slot, listener: listener, peers: map[int]*peer{},
		losing: map[int]bool{}, arriving: map[uint64]bool{}, conns: map[net.Conn]bool{}, users: map[string]bool{},
	}
	l.arrived.L = &l.mu
	l.makeWays()
	l.helpers.Go(func() { l.accept(listener, l.serve) })
	return l, nil
}

// Start makes the process a node. The bell is rung whenever there is something to
// Poll.
func (l *Link) Start(handler Handler, bell *Bell) error {
	if bell.memory.fd < 0 {
		return errors.New("no memory can be shared with other processes")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handler, l.bell = handler, bell
	return nil
}

// started reports whether Start was called. Before that no other node knows this one.
func (l *Link) started() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bell != nil
}

// Slot returns the node's number, from 1 to Slots-1.
func (l *Link) Slot() int { return l.slot }

// Close ends the node. Its owner must have ended the other calls.
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

// accept lets serve serve the nodes that connect. docs/softroce.md has its name.
func (l *Link) accept(listener net.Listener, serve func(c *net.UnixConn, slot int, there func())) {
	for {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !l.open(c) {
			return
		}
		there := l.arrive()
		l.helpers.Go(func() {
			defer l.hangUp(c)
			defer there()
			unix := c.(*net.UnixConn)
			if slot, err := l.greet(unix); err == nil {
				serve(unix, slot, there)
			}
		})
	}
}

// arrive notes that a connection was accepted, and returns the function that notes that its ring is a source, or that it has none.
func (l *Link) arrive() (there func()) {
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

// await waits until the rings of all nodes that have connected so far are sources. One that has ended since may have left frames.
func (l *Link) await() {
	// Connections are accepted in their order, so those before this one are noted when the link answers, and closes it.
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

// open notes an open connection, unless the link is closed.
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

func (l *Link) hangUp(c net.Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	c.Close()
}

// greet tells a connected process this node's slot and returns its own. What follows has little time, too.
func (l *Link) greet(c *net.UnixConn) (slot int, err error) {
	if err := sameUser(c); err != nil {
		return 0, err
	}
	if err := c.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return 0, err
	}
	_, _ = c.Write(append([]byte(magic), byte(l.slot))) // a node that has ended may have left what it says, and frames
	return hear(c)
}

// hear returns the slot that a connected process tells.
func hear(c *net.UnixConn) (slot int, err error) {
	var hello [len(magic) + 1]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return 0, err
	}
	slot = int(hello[len(magic)])
	if string(hello[:len(magic)]) != magic || slot == 0 || slot >= Slots {
		return 0, fmt.Errorf("the other end is no node of this version: %w", syscall.ECONNREFUSED)
	}
	return slot, nil
}

// sameUser returns an error if the process at the other end runs as another user.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); cerr != nil {
		return cerr
	}
	if err == nil && int(cred.Uid) != os.Geteuid() {
		err = fmt.Errorf("the other end runs as user %d: %w", cred.Uid, syscall.ECONNREFUSED)
	}
	return err
}

// A node that sends frames connects with the one that they go to, and gives it a ring and its bell; frames may be
// in the ring, and the node may end, before the other has looked. It gets the other's bell. Nothing more is sent: the
// connection is there so that each notices when the other ends.

// sendMemory sends descriptors of memory.
func sendMemory(c *net.UnixConn, parts ...memory) error {
	fds := make([]int, len(parts))
	for i, m := range parts {
		fds[i] = m.fd
	}
	_, _, err := c.WriteMsgUnix([]byte{byte(len(fds))}, syscall.UnixRights(fds...), nil)
	return err
}

// receiveFDs receives n descriptors.
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
		return nil, fmt.Errorf("a node sends %d descriptors in the place of %d", len(all), n)
	}
	return all, nil
}

// serve receives the ring of a node that has connected, and waits until the node ends.
func (l *Link) serve(c *net.UnixConn, slot int, there func()) {
	if slot == l.slot || !l.started() {
		return // whoever says so is not
	}
	s, err := l.receiveRing(c, slot)
	if err != nil {
		return
	}
	l.mu.Lock()
	for _, o := range l.sources {
		if o.slot == slot { // the slot was free since, though that may not have been noticed yet
			o.ended.Store(true)
			s.before = o
		}
	}
	l.sources = append(slices.Clone(l.sources), s)
	l.seen[slot]++
	l.mu.Unlock()
	there()
	l.bell.Ring() // there may be frames
	waitForEnd(c)
	s.ended.Store(true)
	l.bell.Ring()
}

func (l *Link) receiveRing(c *net.UnixConn, slot int) (*source, error) {
	fds, err := receiveFDs(c, 2)
	if err != nil {
		return nil, err
	}
	s := &source{slot: slot, conn: c}
	s.ring.memory, err = openMemory(fds[0], ringStart+ringBytes)
	if err != nil {
		syscall.Close(fds[1])
		return nil, err
	}
	s.ring.memory.closeFD()
	if s.bell, err = openBell(fds[1]); err != nil {
		s.ring.memory.close()
		return nil, err
	}
	_ = sendMemory(c, l.bell.memory) // unless the node has ended
	return s, nil
}

func (s *source) close() {
	s.ring.memory.close()
	s.bell.memory.close()
}

// waitForEnd returns when the other end is closed, or sends what it should not. docs/softroce.md has its name.
func waitForEnd(c *net.UnixConn) {
	var b [1]byte
	if c.SetDeadline(time.Time{}) == nil {
		c.Read(b[:])
	}
}

// connect connects with a node, as far as that can be done without waiting for it. Who calls it has l.mu.
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
		err = sendMemory(conn, ring, l.bell.memory)
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
	l.helpers.Go(func() { l.attend(p, conn) })
	return p, nil
}

// attend gets a peer's bell, and waits until the node ends.
func (l *Link) attend(p *peer, conn *net.UnixConn) {
	defer l.hangUp(conn)
	if bell, err := receiveBell(conn, p.slot); err == nil {
		l.mu.Lock()
		p.bell = bell
		l.mu.Unlock()
		bell.Ring() // for what was sent before
		waitForEnd(conn)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.drop(p.slot, p)
	l.full = true // who waits for room need not any more
	l.bell.Ring()
	if l.ended[p.slot] == p.ended { // else the end has been told
		l.lose(p.slot)
	}
}

// receiveBell waits for a node's answer, without a limit: a node that is stopped answers when it goes on, and one that has ended
// closes the connection.
func receiveBell(conn *net.UnixConn, slot int) (*Bell, error) {
	other, err := hear(conn)
	if err != nil {
		return nil, err
	}
	if other != slot {
		return nil, fmt.Errorf("node %d says that it is node %d", slot, other)
	}
	fds, err := receiveFDs(conn, 1)
	if err != nil {
		return nil, err
	}
	return openBell(fds[0])
}

// lose lets Poll tell that a node that frames go to is gone. If frames come from it, its end is told after the last of
// them. Who calls it has l.mu.
func (l *Link) lose(slot int) {
	hasSource := func() bool { return slices.ContainsFunc(l.sources, func(s *source) bool { return s.slot == slot }) }
	if l.closed || l.losing[slot] || hasSource() {
		return
	}
	l.losing[slot] = true
	before := l.seen[slot]
	l.helpers.Go(func() {
		l.await()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.losing, slot)
		if l.seen[slot] == before {
			l.gone = append(l.gone, slot)
			l.bell.Ring()
		}
	})
}

// drop forgets a peer.
func (l *Link) drop(slot int, p *peer) {
	if len(p.waiting) > 0 {
		l.waiting--
	}
	delete(l.peers, slot)
	p.ring.memory.close()
	if p.bell != nil {
		p.bell.memory.close()
	}
}

// call makes Flush ring a peer's bell.
func (l *Link) call(p *peer) {
	if !p.called {
		p.called = true
		l.called = append(l.called, p)
	}
}

// Flush rings the bells of the nodes that Send and Poll have sent frames to. A node that has a processor may take it from this one then, so what is
// more urgent comes first.
func (l *Link) Flush() {
	if len(l.called) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.called {
		p.called = false
		if l.peers[p.slot] == p { // it has not ended
			p.tell()
		}
	}
	clear(l.called)
	l.called = l.called[:0]
}

// tell rings a peer's bell. Until there is one, attend will.
func (p *peer) tell() {
	if p.bell != nil {
		p.bell.Ring()
	}
}

// Send sends a frame of size bytes, which fill writes; if it returns false there is no frame. It does not
// block. A frame to a node that is not there, or that does not read for long, is dropped.
func (l *Link) Send(slot, size int, fill func(frame []byte) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || size > MaxFrame || slot < 0 || slot >= Slots { // a program may send to any number
		return
	}
	p := l.peers[slot]
	if p == nil {
		var err error
		if p, err = l.connect(slot); err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) {
				l.lose(slot)
			}
			return // without memory or descriptors, say, the frame is lost
		}
	}
	if len(p.waiting) == 0 {
		if b := p.ring.begin(size); b != nil {
			if fill(b) {
				p.ring.end(size)
				l.call(p)
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

// Room reports whether a node keeps up with what is sent to it. If not, Resume is called when it may be so again.
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

// send sends what waits for a peer, as far as there is room.
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
		l.call(p)
		p.waiting = slices.Delete(p.waiting, 0, sent)
		p.stuck = p.stuck && sent == 0
		if len(p.waiting) == 0 {
			p.waiting = nil
			l.waiting--
		}
	}
}

// Poll passes on what has arrived, and sends what waits for nodes that have room. It reports whether it has left
// some for the next call.
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
			continue // more is true
		}
		s.before = nil
		ended := s.ended.Load() // then there come no more
		left, err := l.receive(s)
		switch {
		case err != nil:
			s.conn.Close()
		case left || !ended:
			more = more || left
			continue
		}
		l.remove(s)
		l.handler.Gone(s.slot) // before what comes from the next node in the slot
	}
	return more
}

// receive passes on frames of a node. It reports whether there may be more.
func (l *Link) receive(s *source) (more bool, err error) {
	for start := s.ring.read; s.ring.read-start < fair; {
		frame, err := s.ring.next()
		if err != nil {
			return false, err
		}
		if frame == nil {
			l.give(s)
			return false, nil
		}
		l.handler.Receive(s.slot, frame)
		if s.ring.read-s.ring.given >= often {
			l.give(s)
		}
	}
	return true, nil
}

func (l *Link) give(s *source) {
	if s.ring.give() {
		s.bell.Ring()
	}
}

// remove forgets a source.
func (l *Link) remove(s *source) {
	l.mu.Lock()
	l.sources = slices.DeleteFunc(slices.Clone(l.sources), func(o *source) bool { return o == s })
	l.ended[s.slot]++
	l.mu.Unlock()
	s.removed = true
	s.close()
}

// Announce shows by a name what this process does. No node is found by that name.
func Announce(name string) (io.Closer, error) {
	return net.Listen("unix", Prefix()+name+"/"+newToken())
}
