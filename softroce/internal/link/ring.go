// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
)

// A ring carries frames from one process to another through memory that they
// share. The counters at writtenAt and readAt are the numbers of bytes since
// the start. A frame consists of its length in four bytes, its content, and
// padding to a multiple of 8. A frame is contiguous: if it does not fit before
// the end of the ring, the length there is skip, and the frame is at the start.
const (
	ringBytes = 1 << 20
	ringStart = 4096 // offset of the frames

	writtenAt = 0
	readAt    = 64
	wantedAt  = 128 // offset of a number that is not 0 while the writer waits for room

	skip = 1<<32 - 1

	// MaxFrame is the size of the largest frame, in bytes.
	MaxFrame = 1 << 15

	// wantedRoom is the free room in bytes at which a writer that waits for
	// room continues.
	wantedRoom = ringBytes / 4
	// giveBytes is the number of bytes of handled frames after which a
	// reader frees their room.
	giveBytes = 1 << 14
)

// space returns the number of bytes in a ring for a frame of that length.
func space(length int) int { return (4 + length + 7) &^ 7 }

// writer is the end of a ring to which frames are written.
type writer struct {
	memory  memory
	written uint64 // number of bytes written since the start
	read    uint64 // number of bytes that the reader has freed, when the writer last looked
}

// begin returns the memory for the next frame, or nil if the ring has no room
// for the frame now.
func (w *writer) begin(length int) []byte {
	at := int(w.written % ringBytes)
	need := space(length)
	if at+need > ringBytes {
		if !w.has(ringBytes - at + need) {
			return nil
		}
		binary.LittleEndian.PutUint32(w.memory.bytes[ringStart+at:], skip)
		w.written += uint64(ringBytes - at)
		at = 0
	} else if !w.has(need) {
		return nil
	}
	return w.memory.bytes[ringStart+at+4:][:length:length]
}

// end makes the frame for which begin returned memory visible to the reader.
func (w *writer) end(length int) {
	binary.LittleEndian.PutUint32(w.memory.bytes[ringStart+w.written%ringBytes:], uint32(length))
	w.written += uint64(space(length))
	// Swap rather than Store: under the race detector, a store may come after
	// the load of the bell's word that follows.
	atomic.SwapUint64(pointer[uint64](w.memory, writtenAt), w.written)
}

// has reports whether the ring has room for n bytes.
func (w *writer) has(n int) bool {
	if w.free() < n {
		w.read = atomic.LoadUint64(pointer[uint64](w.memory, readAt))
	}
	return w.free() >= n
}

// free returns the number of free bytes, or 0 if the reader's counter is
// impossible.
func (w *writer) free() int {
	used := w.written - w.read
	if used > ringBytes {
		return 0
	}
	return int(ringBytes - used)
}

// isFilling reports whether a fourth of the ring has not been freed.
func (w *writer) isFilling() bool { return !w.has(ringBytes - ringBytes/4) }

// want reports whether wantedRoom bytes are free. If not, the reader will ring
// the bell when they are.
func (w *writer) want() (room bool) {
	if w.has(wantedRoom) {
		return true
	}
	atomic.SwapUint32(pointer[uint32](w.memory, wantedAt), 1)
	return w.has(wantedRoom)
}

// reader is the end of a ring from which frames are read.
type reader struct {
	memory  memory
	read    uint64 // number of bytes read since the start
	given   uint64 // value of read that the writer can see
	written uint64 // number of bytes that were written, when the reader last looked
}

var errRing = errors.New("a node has written an invalid frame to its ring")

// next returns the next frame, or nil if there is none. The frame is valid
// until give is called.
func (r *reader) next() (frame []byte, err error) {
	for {
		if r.read == r.written {
			r.written = atomic.LoadUint64(pointer[uint64](r.memory, writtenAt))
		}
		have := r.written - r.read
		switch {
		case have == 0:
			return nil, nil
		case have > ringBytes || have%8 != 0:
			return nil, errRing
		}
		frame = r.memory.bytes[ringStart+r.read%ringBytes : ringStart+ringBytes]
		length := binary.LittleEndian.Uint32(frame)
		if length == skip && len(frame) < ringBytes && uint64(len(frame)) <= have {
			r.read += uint64(len(frame))
			continue
		}
		if length > MaxFrame || space(int(length)) > min(len(frame), int(have)) {
			return nil, errRing
		}
		r.read += uint64(space(int(length)))
		return frame[4:][:length:length], nil
	}
}

// give frees the room of the frames that were read. tell reports whether the
// writer waits for that room.
func (r *reader) give() (tell bool) {
	if r.given == r.read {
		return false
	}
	r.given = r.read
	atomic.SwapUint64(pointer[uint64](r.memory, readAt), r.read)
	wanted := pointer[uint32](r.memory, wantedAt)
	return atomic.LoadUint32(wanted) != 0 && r.written-r.read <= ringBytes-wantedRoom && atomic.SwapUint32(wanted, 0) != 0
}
