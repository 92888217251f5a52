// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// ioMaps is the memory of a connection to which the peer writes directly. Its
// entries are announced to the peer, in the order of the calls of IOMap.
type ioMaps struct {
	unsaid atomic.Int32 // number of entries that the peer does not know yet

	mu     sync.Mutex
	all    []*ioMap
	closed bool
}

// ioMap is a part of the memory.
type ioMap struct {
	region *ibverbs.MR
	offset uint64 // by which the peer names the first byte
	index  int    // in the peer's table; -1: the peer cannot write to the memory
	said   bool   // whether the peer knows the entry
}

// close deregisters all memory.
func (m *ioMaps) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, one := range m.all {
		_ = one.region.Close() // cannot fail: nothing uses the region
	}
	m.all = nil
	m.unsaid.Store(0)
}

// IOMap registers memory. If writable is true, the peer can then write to it
// directly, at the offsets from offset on. IOMap does not tell the peer: see
// TryAnnounce. It fails with an error matching syscall.ENOMEM if the peer has
// no room for another entry. The memory must stay valid until IOUnmap or Close.
func (i connInternals) IOMap(memory []byte, writable bool, offset uint64) error {
	c, m := i.c, &i.c.ioMaps
	if len(memory) == 0 || uint64(len(memory)) > math.MaxUint32 {
		return fmt.Errorf("direct writes to %d bytes: %w", len(memory), os.ErrInvalid)
	}
	access := ibverbs.AccessLocalWrite
	if writable {
		access |= ibverbs.AccessRemoteWrite
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || fired(c.closed) {
		return net.ErrClosed
	}
	one := &ioMap{offset: offset, index: -1, said: true}
	if writable {
		if one.index = m.freeIndex(c.peerIOMaps()); one.index < 0 {
			return fmt.Errorf("the peer has room for %d parts of memory: %w", c.peerIOMaps(), syscall.ENOMEM)
		}
		one.said = false
	}
	var err error
	if one.region, err = c.rdma.PD().Register(memory, access); err != nil {
		return err
	}
	m.all = append(m.all, one)
	if writable {
		m.unsaid.Add(1)
	}
	return nil
}

// freeIndex returns an index below n that no entry has, or -1. The caller holds
// m.mu.
func (m *ioMaps) freeIndex(n int) int {
	used := make([]bool, n)
	for _, one := range m.all {
		if one.index >= 0 {
			used[one.index] = true
		}
	}
	for i, is := range used {
		if !is {
			return i
		}
	}
	return -1
}

func (c *Conn) peerIOMaps() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.PeerIOMaps()
}

// TryAnnounce tells the peer of memory that was passed to IOMap, as far as it
// can without waiting. Later writes tell it of the rest.
func (i connInternals) TryAnnounce() {
	if i.c.writer.tryBegin(i.c.closed) == nil {
		_ = i.c.announce(false) // an error shows again in the next write
		i.c.writer.end()
	}
}

// IOUnmap deregisters memory that was passed to IOMap. A later direct write of
// the peer to it ends the connection.
func (i connInternals) IOUnmap(memory []byte) error {
	m := &i.c.ioMaps
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, one := range m.all {
		b := one.region.Bytes()
		if len(b) != len(memory) || unsafe.SliceData(b) != unsafe.SliceData(memory) {
			continue
		}
		if !one.said {
			m.unsaid.Add(-1)
		}
		m.all = append(m.all[:at:at], m.all[at+1:]...)
		return one.region.Close()
	}
	return fmt.Errorf("the memory was not mapped: %w", os.ErrInvalid)
}

// announce tells the peer of memory that was passed to IOMap. The caller uses
// the writing direction. If wait is false, announce returns errWouldBlock
// instead of waiting.
func (c *Conn) announce(wait bool) error {
	m := &c.ioMaps
	for m.unsaid.Load() > 0 {
		if err := c.roomToAnnounce(wait); err != nil {
			return err
		}
		if err := c.announceNext(); err != nil {
			return err
		}
	}
	return nil
}

// roomToAnnounce waits until an announcement may be sent.
func (c *Conn) roomToAnnounce(wait bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch err := c.mayWrite(); {
		case err != nil:
			return err
		case c.writer.deadline.hasPassed():
			return os.ErrDeadlineExceeded
		case c.state.CanAnnounce() && !c.isOver:
			return nil
		case !wait:
			return errWouldBlock
		}
		if err := c.wait(&c.writer); err != nil {
			return err
		}
	}
}

// announceNext sends the first announcement that is due, if any. There must be
// room for it.
func (c *Conn) announceNext() error {
	m := &c.ioMaps
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		if one.said {
			continue
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.mayWrite(); err != nil {
			return err
		}
		if err := c.takeSendBuffer(); err != nil {
			return err
		}
		p := c.state.Announce(one.index)
		remote := one.region.Remote()
		var entry [protocol.IOMapLen]byte
		c.state.PutIOMap(entry[:], protocol.IOMap{
			Offset: one.offset, Region: protocol.Region{Addr: remote.Addr, Key: remote.RKey, Length: uint32(remote.Len)},
		})
		c.fill(p.Offset, len(entry), &net.Buffers{entry[:]})
		c.postData(p)
		one.said = true
		m.unsaid.Add(-1)
		return c.err
	}
	m.unsaid.Store(0) // Close has removed them
	return nil
}

// TryWriteAt writes b directly to the peer's memory at the offset. It does not
// wait. It returns how many bytes it has written; the error is not nil if they
// are fewer than len(b). It matches syscall.EAGAIN if there is no more room,
// and syscall.EINVAL if the peer has announced no memory there.
func (i connInternals) TryWriteAt(b []byte, offset uint64) (int, error) {
	c := i.c
	if err := c.writer.tryBegin(c.closed); err != nil {
		return 0, err
	}
	defer c.writer.end()
	c.pump.refresh() // announcements may have arrived
	n, err := c.writeAt(b, offset)
	if errors.Is(err, syscall.EAGAIN) {
		c.pump.refresh()
		var more int
		more, err = c.writeAt(b[n:], offset+uint64(n))
		n += more
	}
	return n, err
}

var errNotMapped = fmt.Errorf("the peer has no memory there: %w", syscall.EINVAL)

// writeAt does the work of TryWriteAt.
func (c *Conn) writeAt(b []byte, offset uint64) (int, error) {
	if err := c.announce(false); err != nil {
		return 0, err
	}
	done := 0
	for step := protocol.FirstData; done < len(b); step = min(2*step, protocol.LongData) {
		n, err := c.writePiece(b[done:min(len(b), done+step)], offset+uint64(done))
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// writePiece writes some of b in one request, and returns how many bytes.
func (c *Conn) writePiece(b []byte, offset uint64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayWrite(); err != nil {
		return 0, err
	}
	to, ok := c.state.Find(offset)
	if !ok {
		return 0, errNotMapped
	}
	n := c.state.RoomDirect(int(min(int64(len(b)), int64(to.Length))))
	if n == 0 || c.isOver {
		return 0, errWouldBlock
	}
	if err := c.takeSendBuffer(); err != nil {
		return 0, err
	}
	p := c.state.WriteDirect(to, n)
	c.fill(p.Offset, n, &net.Buffers{b[:n:n]})
	c.postData(p)
	return n, c.err
}
