// SPDX-License-Identifier: Apache-2.0

package links

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/ibverbs"
)

var soak = []check.Check{{
	Name: "soak.connection", Features: []check.Feature{check.Connections, check.Sockets, check.Transfers, check.Atomics},
	Proves: "a connection that is loaded for some time with messages, reads, writes and atomic operations of changing sizes loses and changes nothing",
	Run:    on(load),
}}

// loaded is a connection with memory at both ends. The peer's last 8 bytes are
// for atomic operations.
type loaded struct {
	*line
	remote  ibverbs.RemoteBuffer
	memory  *ibverbs.MR // this end's
	mirror  []byte      // what the peer's memory must have
	counter uint64      // what the peer's last 8 bytes must have
	random  *rand.Rand
}

const (
	// chunk is the most bytes that a request moves.
	chunk = 256 << 10
	// written is how many bytes of the peer's memory are for writes.
	written = peer.MemorySize - 8
)

func load(r *rig) {
	conn := r.dial(peer.Memory, 0, 0)
	remote, ok := r.session.Lent(conn)
	r.want(ok, "the server has lent no memory")
	r.Reserve(peer.MemorySize + chunk)
	memory, err := conn.Alloc(chunk, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite) // iWARP needs the latter for reads
	r.ok(err)
	seed := rand.Uint64()
	l := &loaded{r.line(conn), remote, memory, make([]byte, peer.MemorySize), 0, rand.New(rand.NewPCG(seed, 0))}
	steps := []func(){l.message, l.write}
	if r.reads() {
		steps = append(steps, l.read, l.read)
	}
	if r.atomics() {
		steps = append(steps, l.add, l.swap)
	}
	n, start := 0, time.Now()
	for end := start.Add(r.Target().Soak); n < len(steps) || time.Now().Before(end); n++ {
		if r.Context().Err() != nil {
			r.Failf("the time was over after %d requests, seed %d", n, seed)
		}
		if n < len(steps) {
			steps[n]() // each at least once
		} else {
			steps[l.random.IntN(len(steps))]()
		}
	}
	l.compare(0, written)
	if l.atomics() {
		l.compareCounter()
	}
	r.Notef("%d requests in %v", n, time.Since(start).Round(time.Millisecond))
}

// place chooses a range of the peer's memory.
func (l *loaded) place() (offset, n int) {
	n = 1 + l.random.IntN(1<<(1+l.random.IntN(18))) // small ones as often as large ones
	return l.random.IntN(written - n), n
}

func (l *loaded) message() { l.echo(1+l.random.IntN(peer.MessageSize-1), byte(l.random.Uint32())&^1) }

// write writes, and lets the server compare.
func (l *loaded) write() {
	offset, n := l.place()
	data := l.memory.Bytes()[:n]
	for i := range data {
		data[i] = byte(l.random.Uint32())
	}
	copy(l.mirror[offset:], data)
	ctx, cancel := l.wait()
	defer cancel()
	l.ok(l.Write(ctx, l.remote.Sub(uint64(offset), uint64(n)), l.memory.Sub(0, n)))
	l.compare(offset, n)
}

// compare lets the server compare a range of its memory.
func (l *loaded) compare(offset, n int) {
	answer := l.answer(peer.Sum(offset, n))
	l.want(len(answer) == 4, "the server's answer has %d bytes", len(answer))
	l.want(binary.BigEndian.Uint32(answer) == crc32.ChecksumIEEE(l.mirror[offset:offset+n]), "%d bytes at %d of the server's memory are not those that were written", n, offset)
}

func (l *loaded) read() {
	offset, n := l.place()
	ctx, cancel := l.wait()
	defer cancel()
	l.ok(l.Read(ctx, l.memory.Sub(0, n), l.remote.Sub(uint64(offset), uint64(n))))
	l.want(bytes.Equal(l.memory.Bytes()[:n], l.mirror[offset:offset+n]), "other bytes were read at %d than were written, of %d", offset, n)
}

func (l *loaded) add() {
	n := l.random.Uint64()
	l.atomic(l.counter, func(at ibverbs.RemoteBuffer, result ibverbs.Segment) error {
		ctx, cancel := l.wait()
		defer cancel()
		return l.FetchAdd(ctx, at, n, result)
	})
	l.counter += n
}

// swap swaps if the comparison is right, which it is half of the time.
func (l *loaded) swap() {
	n, compare := l.random.Uint64(), l.counter^uint64(l.random.IntN(2))
	l.atomic(l.counter, func(at ibverbs.RemoteBuffer, result ibverbs.Segment) error {
		ctx, cancel := l.wait()
		defer cancel()
		return l.CompareSwap(ctx, at, compare, n, result)
	})
	if compare == l.counter {
		l.counter = n
	}
}

// atomic does an atomic operation, whose result must be the value before.
func (l *loaded) atomic(want uint64, do func(at ibverbs.RemoteBuffer, result ibverbs.Segment) error) {
	l.ok(do(l.remote.Sub(written, 8), l.memory.Sub(0, 8)))
	got := binary.NativeEndian.Uint64(l.memory.Bytes())
	l.want(got == want, "an atomic operation has found the value %#x instead of %#x", got, want)
}

// compareCounter compares the peer's last 8 bytes.
func (l *loaded) compareCounter() {
	l.atomic(l.counter, func(at ibverbs.RemoteBuffer, result ibverbs.Segment) error {
		ctx, cancel := l.wait()
		defer cancel()
		return l.FetchAdd(ctx, at, 0, result)
	})
}
