// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

// recorder keeps what arrives.
type recorder struct {
	mu     sync.Mutex
	frames map[int][][]byte
	gone   map[int]int
	news   chan struct{}
}

func newRecorder() *recorder {
	return &recorder{frames: map[int][][]byte{}, gone: map[int]int{}, news: make(chan struct{}, 1)}
}

func (r *recorder) tell() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *recorder) Receive(slot int, frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames[slot] = append(r.frames[slot], bytes.Clone(frame))
	r.tell()
}

func (r *recorder) Resume() { r.tell() }

func (r *recorder) Gone(slot int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[slot]++
	r.tell()
}

// patience returns how long a test waits for what must come: less than what is
// left until the limit of all tests, whose stacks do not name the cause.
func patience(t *testing.T) time.Duration {
	const most = time.Minute
	if end, ok := t.Deadline(); ok {
		return min(most, time.Until(end)*9/10)
	}
	return most
}

// until waits until what has arrived is as wanted.
func (r *recorder) until(t *testing.T, what string, wanted func() bool) {
	t.Helper()
	deadline := time.After(patience(t))
	for {
		r.mu.Lock()
		ok := wanted()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.news:
		case <-deadline:
			r.mu.Lock()
			defer r.mu.Unlock()
			require.FailNow(t, "does not come true: "+what, "%s", r.summary())
		}
	}
}

// summary says what has arrived. The caller holds r.mu.
func (r *recorder) summary() string {
	var b strings.Builder
	for slot, frames := range r.frames {
		fmt.Fprintf(&b, "%d frames of node %d, ", len(frames), slot)
	}
	return fmt.Sprintf("has %sand the ends of %v", b.String(), r.gone)
}

// until waits until a condition holds of which no goroutine tells.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience(t)); !holds(); runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "does not come true: "+what)
	}
}

// take returns what comes next.
func take[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience(t)):
		require.FailNow(t, "does not come: "+what)
	}
	return v
}

// owner is the owner of a link: a mutex lets one call be made at a time, and a
// goroutine polls whenever the bell rings.
type owner struct {
	*Link
	mu    sync.Mutex
	bell  *Bell
	ended bool
	done  chan struct{}
}

func own(t testing.TB, h Handler) *owner {
	t.Helper()
	bell := NewBell(new(uint32))
	l, err := Reserve()
	require.NoError(t, err)
	require.NoError(t, l.Start(h, bell))
	o := &owner{Link: l, bell: bell, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for o.poll() {
			wait(bell)
		}
	}()
	t.Cleanup(o.end)
	return o
}

// wait waits for a bell, without a Poller for a second at most.
func wait(b *Bell) {
	if !b.Spin(time.Hour, nil) {
		b.Sleep(func() time.Duration { return time.Hour })
	}
}

func (o *owner) poll() bool {
	o.bell.Hear()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended && o.Poll() {
		o.bell.Ring()
	}
	o.Flush()
	return !o.ended
}

// stop ends the goroutine: nothing is received any more.
func (o *owner) stop() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.bell.Ring()
	<-o.done
}

// end ends the node, if it has not ended.
func (o *owner) end() {
	if o.ended {
		return
	}
	o.stop()
	o.Close()
}

func (o *owner) send(slot int, parts ...[]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	frame := bytes.Join(parts, nil)
	o.Send(slot, len(frame), true, func(b []byte) bool {
		copy(b, frame)
		return true
	})
	o.Flush()
}

// room is Room, and what waits for the node.
func (o *owner) room(slot int) (room bool, waiting int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	room = o.Room(slot)
	o.Link.mu.Lock()
	defer o.Link.mu.Unlock()
	return room, o.peers[slot].bytes
}

func join(t *testing.T) (*owner, *recorder) {
	t.Helper()
	r := newRecorder()
	return own(t, r), r
}

func TestFramesArriveInOrder(t *testing.T) {
	a, _ := join(t)
	b, got := join(t)
	require.NotEqual(t, a.Slot(), b.Slot())
	const frames = 5000
	for i := range frames {
		body := bytes.Repeat([]byte{byte(i)}, i*7%(MaxFrame-4))
		a.send(b.Slot(), binary.LittleEndian.AppendUint32(nil, uint32(i)), body)
		// A node that is not connected yet, or does not read, makes frames
		// wait, up to a limit.
		got.until(t, "the node takes frames", func() bool { return i-len(got.frames[a.Slot()]) < maxWaiting/MaxFrame })
	}
	got.until(t, "all frames arrive", func() bool { return len(got.frames[a.Slot()]) == frames })
	for i, frame := range got.frames[a.Slot()] {
		require.Equal(t, uint32(i), binary.LittleEndian.Uint32(frame))
		require.Len(t, frame, 4+i*7%(MaxFrame-4))
	}
}

func TestGone(t *testing.T) {
	a, _ := join(t)
	b, got := join(t)
	for i := range 100 {
		a.send(b.Slot(), []byte{byte(i)})
	}
	got.until(t, "the first frame arrives", func() bool { return len(got.frames[a.Slot()]) > 0 })
	b.send(a.Slot(), []byte("answer"))
	slot := a.Slot()
	a.end()
	got.until(t, "the end is told", func() bool { return got.gone[slot] > 0 })
	require.Len(t, got.frames[slot], 100, "what was sent before comes first")

	// The slot is free again.
	c, _ := join(t)
	require.Equal(t, slot, c.Slot())
}

// A node may end as soon as it has sent its first frames.
func TestLastWords(t *testing.T) {
	b, got := join(t)
	for range 50 {
		a, _ := join(t)
		a.send(b.Slot(), []byte("first"))
		a.send(b.Slot(), []byte("last"))
		a.end()
		slot := a.Slot()
		got.until(t, "the end is told", func() bool { return got.gone[slot] == 1 })
		require.Equal(t, [][]byte{[]byte("first"), []byte("last")}, got.frames[slot])
		got.mu.Lock()
		delete(got.gone, slot)
		delete(got.frames, slot)
		got.mu.Unlock()
	}
}

// A node that takes its time to answer is there, and gets everything.
func TestSlowAnswer(t *testing.T) {
	a, got := join(t)
	listener, err := claim(fmt.Sprintf("node/%d", Slots-2))
	require.NoError(t, err)
	defer listener.Close()
	a.send(Slots-2, []byte("one"))
	conn, err := listener.Accept()
	require.NoError(t, err)
	defer conn.Close()
	c := conn.(*net.UnixConn)
	_, err = io.ReadFull(c, make([]byte, len(magic)+1))
	require.NoError(t, err)
	fds, err := receiveFDs(c, 1+bellFDs)
	require.NoError(t, err)
	ring, err := openMemory(fds[0], ringStart+ringBytes)
	require.NoError(t, err)
	defer ring.close()
	theirs, err := openBell(fds[1:])
	require.NoError(t, err)
	defer theirs.close()

	<-time.After(helloTimeout + helloTimeout/2) // longer than a node has for its hello
	a.send(Slots-2, []byte("two"))
	own := NewBell(new(uint32))
	_, err = c.Write(append([]byte(magic), Slots-2))
	require.NoError(t, err)
	require.NoError(t, sendFDs(c, own.fds()...))
	wait(own)
	require.Equal(t, uint32(Rung), atomic.LoadUint32(own.Word()))
	r := reader{memory: ring}
	for _, want := range []string{"one", "two"} {
		frame, err := r.next()
		require.NoError(t, err)
		require.Equal(t, want, string(frame))
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Empty(t, got.gone)
}

func TestNobody(t *testing.T) {
	a, got := join(t)
	a.send(Slots-1, []byte("lost"))
	got.until(t, "the absence of the node is told", func() bool { return got.gone[Slots-1] == 1 })
	_, err := a.Find("port/unused")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestNames(t *testing.T) {
	a, _ := join(t)
	b, _ := join(t)
	name := fmt.Sprintf("port/%d", a.Slot())
	claim, err := a.Claim(name)
	require.NoError(t, err)
	_, err = b.Claim(name)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = a.Claim(name)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	for _, l := range []*owner{a, b} {
		slot, err := l.Find(name)
		require.NoError(t, err)
		require.Equal(t, a.Slot(), slot)
	}
	require.NoError(t, claim.Close())
	_, err = b.Find(name)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	claim, err = b.Claim(name)
	require.NoError(t, err)
	require.NoError(t, claim.Close())
}

// A node that has found a name is still there.
func TestFindersStay(t *testing.T) {
	a, got := join(t)
	b, _ := join(t)
	name := fmt.Sprintf("port/%d", a.Slot())
	claim, err := a.Claim(name)
	require.NoError(t, err)
	for range 100 {
		_, err := b.Find(name)
		require.NoError(t, err)
	}
	b.send(a.Slot(), []byte("still there"))
	got.until(t, "the frame arrives", func() bool { return len(got.frames[b.Slot()]) == 1 })
	require.NoError(t, claim.Close())
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Empty(t, got.gone)
}

// TestHostileNode connects to a node and sends it what no node sends.
func TestHostileNode(t *testing.T) {
	a, got := join(t)
	for name, hello := range map[string][]byte{
		"nothing":    nil,
		"not a node": []byte("GET / HTTP/1.1\r\n\r\n"),
		"slot 0":     append([]byte(magic), 0),
		"no ring":    append([]byte(magic), 200, 2),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("unix", a.listener.Addr().String())
			require.NoError(t, err)
			_, err = c.Write(hello)
			require.NoError(t, err)
			require.NoError(t, c.(*net.UnixConn).CloseWrite())
			require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
			for b := make([]byte, 64); err == nil; { // until the node closes it
				_, err = c.Read(b)
			}
			require.NotErrorIs(t, err, syscall.EAGAIN)
			require.NoError(t, c.Close())
		})
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Empty(t, got.frames)
}

// pretend connects with a node as one that has a slot. What is read from the
// connection comes in time or not at all.
func pretend(t *testing.T, to *owner, slot byte) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", to.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = c.Write(append([]byte(magic), slot))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, len(magic)+1))
	require.NoError(t, err)
	return c.(*net.UnixConn)
}

// diary has what a handler was told, in order.
type diary chan string

func (d diary) Receive(_ int, frame []byte) { d <- string(bytes.TrimRight(frame, "\x00")) }
func (d diary) Gone(slot int)               { d <- fmt.Sprint("gone ", slot) }
func (diary) Resume()                       {}

func (d diary) next(t *testing.T) string {
	t.Helper()
	return take(t, d, "what the handler is told next")
}

// TestSuccessor lets a node take the slot of another that has ended. The end is
// told before what comes from the next one, also if it is not noticed before.
func TestSuccessor(t *testing.T) {
	for name, noticed := range map[string]bool{"noticed": true, "not noticed": false} {
		t.Run(name, func(t *testing.T) {
			told := make(diary, 10)
			a := own(t, told)
			bell := NewBell(new(uint32))
			defer bell.close()
			arrive := func(text string) (*net.UnixConn, *writer) {
				m, err := newMemory(ringStart + ringBytes)
				require.NoError(t, err)
				t.Cleanup(m.close)
				w := &writer{memory: m}
				copy(w.begin(len(text)), text)
				w.end(len(text))
				c := pretend(t, a, 200)
				require.NoError(t, sendFDs(c, append([]int{m.fd}, bell.fds()...)...))
				fds, err := receiveFDs(c, bellFDs)
				require.NoError(t, err)
				for _, fd := range fds {
					require.NoError(t, syscall.Close(fd))
				}
				return c, w
			}
			first, ring := arrive("first")
			a.bell.Ring()
			require.Equal(t, "first", told.next(t))
			const left = 2 * pollBytes / MaxFrame // more than is received at once
			func() {
				a.mu.Lock() // so that it does not poll
				defer a.mu.Unlock()
				for range left {
					copy(ring.begin(MaxFrame), "left")
					ring.end(MaxFrame)
				}
				if noticed {
					require.NoError(t, first.Close())
				}
				arrive("second")
				until(t, "both links have connected", func() bool {
					a.Link.mu.Lock()
					defer a.Link.mu.Unlock()
					return len(a.sources) == 2 && (!noticed || a.sources[0].ended.Load())
				})
			}()
			a.bell.Ring()
			for range left {
				require.Equal(t, "left", told.next(t))
			}
			require.Equal(t, "gone 200", told.next(t))
			require.Equal(t, "second", told.next(t))
		})
	}
}

// TestPretender connects with a node as one that has its slot, or one that
// there is not.
func TestPretender(t *testing.T) {
	a, _ := join(t)
	bell := NewBell(new(uint32))
	defer bell.close()
	ring, err := newMemory(ringStart + ringBytes)
	require.NoError(t, err)
	defer ring.close()
	for _, slot := range []int{a.Slot(), Slots} {
		c := pretend(t, a, byte(slot))
		_ = sendFDs(c, append([]int{ring.fd}, bell.fds()...)...) // unless the node was faster
		fds, err := receiveFDs(c, bellFDs)
		require.Error(t, err, "slot %d", slot)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Empty(t, fds)
	}
}

// TestUnfinishedRing rings a bell as a process does that ends before it wakes
// the node.
func TestUnfinishedRing(t *testing.T) {
	for name, word := range map[string]uint32{"rung": Rung, "silent": Silent} {
		t.Run(name, func(t *testing.T) {
			b := NewBell(new(uint32))
			defer b.close()
			done := make(chan struct{})
			go func() {
				wait(b)
				close(done)
			}()
			until(t, "the goroutine sleeps", func() bool { return atomic.CompareAndSwapUint32(b.Word(), Asleep, word) })
			b.Ring()
			take(t, done, "the end of the sleep")
		})
	}
}

// TestNoMemory closes memory that there is not, which must not close a
// descriptor of the program.
func TestNoMemory(t *testing.T) {
	for name, open := range map[string]func() (memory, error){
		"make": func() (memory, error) { return newMemory(-1) },
		"open": func() (memory, error) { return openMemory(-1, 4096) },
		"map":  func() (memory, error) { return mapMemory(-1, 4096) },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := open()
			require.Error(t, err)
			require.Equal(t, -1, m.fd)
			require.Nil(t, m.bytes)
		})
	}
}

// TestEndlessSkips reads a ring that says that it is skipped as a whole, which
// it could say for ever.
func TestEndlessSkips(t *testing.T) {
	m, err := newMemory(ringStart + ringBytes)
	require.NoError(t, err)
	defer m.close()
	binary.LittleEndian.PutUint32(m.bytes[ringStart:], skip)
	*pointer[uint64](m, writtenAt) = ringBytes
	_, err = (&reader{memory: m}).next()
	require.ErrorIs(t, err, errRing)
}

// TestHostileRing gives a node memory that is no ring, and rings with frames
// that cannot be.
func TestHostileRing(t *testing.T) {
	a, got := join(t)
	bell := NewBell(new(uint32))
	small, err := newMemory(4096)
	require.NoError(t, err)
	loose, err := os.CreateTemp(t.TempDir(), "") // could shrink
	require.NoError(t, err)
	require.NoError(t, loose.Truncate(ringStart+ringBytes))
	shrinking := memory{fd: int(loose.Fd())}
	ring := func(write func(w *writer)) memory {
		m, err := newMemory(ringStart + ringBytes)
		require.NoError(t, err)
		t.Cleanup(m.close)
		write(&writer{memory: m})
		return m
	}
	length := func(n uint32) func(w *writer) {
		return func(w *writer) {
			w.begin(8)
			w.end(8)
			binary.LittleEndian.PutUint32(w.memory.bytes[ringStart:], n)
		}
	}
	written := func(n uint64) func(w *writer) {
		return func(w *writer) { *pointer[uint64](w.memory, writtenAt) = n }
	}
	with := func(ring memory) []int { return append([]int{ring.fd}, bell.fds()...) }
	for name, parts := range map[string][]int{
		"no bell":                {ring(length(8)).fd},
		"too many":               append(with(ring(length(8))), bell.sleeps.fd),
		"a small ring":           with(small),
		"a ring that shrinks":    with(shrinking),
		"a ring for a bell":      {ring(length(8)).fd, ring(length(8)).fd, bell.sleeps.fd, bell.waits.fd},
		"a bell that blocks":     {ring(length(8)).fd, bell.memory.fd, int(loose.Fd()), bell.waits.fd},
		"a bell that blocks too": {ring(length(8)).fd, bell.memory.fd, bell.sleeps.fd, int(loose.Fd())},
		"a large frame":          with(ring(length(MaxFrame + 1))),
		"more than is written":   with(ring(length(100))),
		"a skip too far":         with(ring(length(skip))),
		"more than there is":     with(ring(written(ringBytes + 8))),
		"half a frame":           with(ring(written(4))),
	} {
		t.Run(name, func(t *testing.T) {
			c := pretend(t, a, 200)
			require.NoError(t, sendFDs(c, parts...))
			if fds, err := receiveFDs(c, bellFDs); err == nil { // the ring has been taken
				theirs, err := openBell(fds)
				require.NoError(t, err)
				theirs.Ring()
				_, err = c.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
				theirs.close()
			} else {
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			}
		})
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Empty(t, got.frames)
}

// TestSlowNode sends more to a node that does not read than is kept for it.
// When it reads, what was kept comes in order.
func TestSlowNode(t *testing.T) {
	a, gotA := join(t)
	b, got := join(t)
	a.send(b.Slot(), []byte{})
	got.until(t, "the first frame arrives", func() bool { return len(got.frames[a.Slot()]) == 1 })
	room, _ := a.room(b.Slot())
	require.True(t, room)
	b.mu.Lock() // so that it does not read
	body := make([]byte, MaxFrame)
	const sent = 4 * maxWaiting / MaxFrame
	for i := range sent {
		binary.LittleEndian.PutUint32(body, uint32(i))
		a.send(b.Slot(), body)
	}
	room, waiting := a.room(b.Slot())
	require.False(t, room)
	require.LessOrEqual(t, waiting, maxWaiting)
	b.mu.Unlock()
	const most, least = (maxWaiting+ringBytes)/MaxFrame + 2, (maxWaiting+ringBytes)/MaxFrame - 2
	got.until(t, "what has waited arrives", func() bool { return len(got.frames[a.Slot()]) >= least })
	gotA.until(t, "there is room again", func() bool {
		room, _ := a.room(b.Slot())
		return room
	})
	a.send(b.Slot(), []byte("last"))
	got.until(t, "the last frame arrives", func() bool { return string(got.frames[a.Slot()][len(got.frames[a.Slot()])-1]) == "last" })
	frames := got.frames[a.Slot()]
	require.LessOrEqual(t, len(frames), most)
	for i, frame := range frames[1 : len(frames)-1] {
		require.Equal(t, uint32(i), binary.LittleEndian.Uint32(frame))
	}
}

// What waits for room has not left the process, until the other node reads, or
// has ended. What goes to others has.
func TestWays(t *testing.T) {
	for name, act := range map[string]func(b *owner){
		"reads": func(b *owner) { b.mu.Unlock() },
		"ends": func(b *owner) {
			b.ended = true
			b.mu.Unlock()
			<-b.done
			b.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := join(t)
			b, _ := join(t)
			c, got := join(t)
			toB, toC, all := a.Way(b.Slot()), a.Way(c.Slot()), a.Way(Slots)
			b.mu.Lock() // so that it does not read
			body := make([]byte, MaxFrame)
			for a.Idle() {
				for _, w := range []*Way{toB, toC, all} {
					require.Zero(t, w.Mark())
					require.True(t, w.Left(0))
				}
				a.send(b.Slot(), body)
			}
			early := toB.Mark()
			require.NotZero(t, early)
			require.False(t, toB.Left(early))
			require.False(t, all.Left(early))
			for range 10 {
				a.send(c.Slot(), []byte("live"))
				require.True(t, toC.Left(toC.Mark()))
			}
			got.until(t, "the frames to the node that reads arrive", func() bool { return len(got.frames[a.Slot()]) == 10 })
			a.send(b.Slot(), body)
			late := toB.Mark()
			require.Greater(t, late, early)

			toB.GiveUp()
			toC.GiveUp()
			require.True(t, toB.Left(late), "the node does not read")
			require.True(t, all.Left(late))
			act(b)
			until(t, "nothing waits for room", a.Idle)
			require.True(t, toB.Left(late))

			c.mu.Lock()
			for a.Idle() {
				a.send(c.Slot(), body)
			}
			mark := toC.Mark()
			require.True(t, toB.Left(mark))
			require.False(t, toC.Left(mark), "it has read since it was given up")
			require.True(t, toC.Left(late), "that has left before")
			c.mu.Unlock()
			until(t, "all frames have left", func() bool { return toC.Left(mark) })
		})
	}
}

// A node that reads slowly holds back what was sent when the mark was taken,
// not what is sent later.
func TestSlowReader(t *testing.T) {
	a, _ := join(t)
	b, _ := join(t)
	w := a.Way(b.Slot())
	b.mu.Lock()
	body := make([]byte, MaxFrame)
	for a.Idle() {
		a.send(b.Slot(), body)
	}
	mark := w.Mark()
	for range 2 * ringBytes / MaxFrame {
		a.send(b.Slot(), body)
	}
	w.GiveUp()
	require.True(t, w.Left(mark))
	b.Poll() // once, so that there is some room
	until(t, "what was sent before the mark has left", func() bool { return w.Left(mark) && !w.Left(w.Mark()) })
	b.mu.Unlock()
	until(t, "nothing waits for room", a.Idle)
}

// The frames of a node that has ended come before the news of its end, also if
// it was known as a destination first and its ring is not a source yet.
func TestLastWordsToSender(t *testing.T) {
	a, got := join(t)
	for range 50 {
		b, gotB := join(t)
		slot := b.Slot()
		a.send(slot, []byte("question"))
		gotB.until(t, "the question arrives", func() bool { return len(gotB.frames[a.Slot()]) == 1 })
		b.stop()
		b.send(a.Slot(), []byte("answer"))
		b.Close()
		got.until(t, "the end is told", func() bool { return got.gone[slot] == 1 })
		require.Equal(t, [][]byte{[]byte("answer")}, got.frames[slot])
		until(t, "the slot is free", func() bool { // else the question of the next node in the slot goes to this one
			a.Link.mu.Lock()
			defer a.Link.mu.Unlock()
			return a.peers[slot] == nil
		})
		got.mu.Lock()
		delete(got.gone, slot)
		delete(got.frames, slot)
		got.mu.Unlock()
	}
}

func TestClaimedNames(t *testing.T) {
	a, _ := join(t)
	b, _ := join(t)
	require.Empty(t, a.Names("TestClaimedNames/x/"))
	first, err := a.Claim("TestClaimedNames/x/1")
	require.NoError(t, err)
	second, err := b.Claim("TestClaimedNames/x/2")
	require.NoError(t, err)
	other, err := b.Claim("TestClaimedNames/xy/3")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"1", "2"}, a.Names("TestClaimedNames/x/"))
	require.NoError(t, first.Close())
	require.Equal(t, []string{"2"}, a.Names("TestClaimedNames/x/"))
	require.NoError(t, second.Close())
	require.NoError(t, other.Close())
}

// A name is free once its socket is closed, even while the process has a
// connection that the socket accepted.
func TestConnectionHoldsNoName(t *testing.T) {
	a, _ := join(t)
	const name = "TestConnectionHoldsNoName/x/"
	listener, err := claim("name/" + name + "1")
	require.NoError(t, err)
	require.Equal(t, []string{"1"}, a.Names(name))
	probe, err := listener.Accept() // it is from Names
	require.NoError(t, err)
	defer probe.Close()
	require.NoError(t, listener.Close())
	require.Empty(t, a.Names(name))
}

// BenchmarkFrames sends frames to a node, which counts them.
func BenchmarkFrames(b *testing.B) {
	from := own(b, newRecorder())
	counter := &counter{done: make(chan struct{}, 1)}
	to := own(b, counter)
	body := make([]byte, 4160)
	b.SetBytes(16 * 4096)
	for b.Loop() {
		counter.left = 16
		for range 16 {
			from.Send(to.Slot(), len(body), true, func(frame []byte) bool {
				copy(frame, body)
				return true
			})
		}
		<-counter.done
	}
}

type counter struct {
	left int
	done chan struct{}
}

func (c *counter) Receive(int, []byte) {
	if c.left--; c.left == 0 {
		c.done <- struct{}{}
	}
}
func (c *counter) Resume()  {}
func (c *counter) Gone(int) {}

// A program may send to queue pairs with any number, of which some belong to no
// node that there can be.
func TestSendToNoSlot(t *testing.T) {
	l, err := Reserve()
	require.NoError(t, err)
	defer l.Close()
	for _, slot := range []int{-1, Slots, Slots + 1, 1 << 16} {
		l.Send(slot, 8, true, func([]byte) bool { return true })
		require.Empty(t, l.peers)
		require.Empty(t, l.ending)
	}
}

// A node that got only acknowledgements is not woken if it spares them, unless
// they fill the ring.
func TestSparedAcksWakeNoNode(t *testing.T) {
	const frame = 80
	for name, tt := range map[string]struct {
		spares, urgent bool
		frames         int
		rings          bool
	}{
		"spared":                   {spares: true, frames: 1},
		"wanted":                   {frames: 1, rings: true},
		"another frame among them": {spares: true, urgent: true, frames: 2, rings: true},
		"a fourth of the ring":     {spares: true, frames: ringBytes/4/space(frame) - 1},
		"more than that":           {spares: true, frames: ringBytes/4/space(frame) + 1, rings: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &Link{peers: map[int]*peer{}}
			ring, err := newMemory(ringStart + ringBytes)
			require.NoError(t, err)
			p := &peer{slot: 1, ring: writer{memory: ring}, bell: NewBell(nil)}
			l.peers[p.slot] = p
			defer l.drop(p.slot, p)
			p.bell.SpareAcks(true)
			p.bell.SpareAcks(tt.spares)
			send := func(urgent bool) {
				l.Send(p.slot, frame, urgent, func([]byte) bool { return true })
			}
			for i := range tt.frames {
				send(tt.urgent && i == 0)
			}
			l.Flush()
			require.Equal(t, tt.rings, p.bell.Hear())
			l.Flush()
			require.False(t, p.bell.Hear(), "once")
			send(true)
			l.Flush()
			require.True(t, p.bell.Hear(), "what is not an acknowledgement")
			p.ring.read = p.ring.written // so that the ring is empty
			send(false)
			l.Flush()
			require.Equal(t, !tt.spares, p.bell.Hear(), "an acknowledgement after it")
		})
	}
}
