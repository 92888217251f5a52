// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func isEither(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// half is that of the default buffer.
const half = 1 << 16

// The addresses of the ends.
const (
	tableAddr  = 0x1000
	bufferAddr = 0x10000000
	key        = 7
)

func defaults() Config {
	return Config{
		SendQueue: 384, Credits: 384, SendBuffer: 2 * half,
		Table: Region{Addr: tableAddr, Key: key}, Buffer: Region{Addr: bufferAddr, Key: key, Length: 2 * half},
	}
}

// end is an end with memory. What it posts reaches the other when the test says
// so.
type end struct {
	*State
	t      testing.TB
	config Config
	table  []byte
	buffer []byte
	send   []byte
	out    []message
}

// message is a posted request, with what it writes.
type message struct {
	Post
	payload []byte // nil after it was written
	length  int    // of what was written
}

func newEnd(t testing.TB, c Config) *end {
	return &end{
		State: New(c), t: t, config: c, table: make([]byte, TableLen(c.IOMaps)), buffer: make([]byte, c.Buffer.Length), send: make([]byte, c.SendBuffer),
	}
}

// connected returns two ends that know each other.
func connected(t testing.TB, a, b Config) (*end, *end) {
	x, y := newEnd(t, a), newEnd(t, b)
	for from, to := range map[*end]*end{x: y, y: x} {
		hello, err := ParseHello(from.Hello().Marshal())
		require.NoError(t, err)
		to.Connect(hello)
	}
	return x, y
}

// post posts a request, if due.
func (e *end) post(p Post, due bool) Word {
	if !due {
		return 0
	}
	m := message{Post: p}
	switch {
	case p.HasEntry:
		m.payload = p.Entry[:]
	case p.Word.Kind() == KindData:
		if e.config.Whole {
			require.LessOrEqual(e.t, p.Offset+p.Len, e.config.SendBuffer, "one piece")
		}
		for i := range p.Len {
			m.payload = append(m.payload, e.send[(p.Offset+i)%len(e.send)])
		}
	}
	e.out = append(e.out, m)
	return p.Word
}

// write sends what fits into one message, of at most so many bytes, and returns
// how much.
func (e *end) write(b []byte, most int) int {
	n := e.Room(min(len(b), most))
	if n == 0 {
		return 0
	}
	for i := range n {
		e.send[(e.Offset()+i)%len(e.send)] = b[i]
	}
	e.post(e.Send(n), true)
	return n
}

// deliver lets the peer receive the first message, which then completes here.
func (e *end) deliver(peer *end) (Word, error) {
	e.out[0].write(e, peer)
	if e.config.Messages { // later writes may be there when the peer looks at the first word
		for i := range e.out {
			e.out[i].write(e, peer)
		}
	}
	m := e.out[0]
	e.out = e.out[1:]
	e.Complete(m.ID)
	if m.Word == KeepAlive {
		return m.Word, nil
	}
	length := m.length
	if e.config.Messages {
		length = 4 // that of the word
	}
	return m.Word, peer.Receive(m.Word, length, peer.table)
}

// write writes the payload to the peer's memory, unless it was written.
func (m *message) write(e, peer *end) {
	if len(m.payload) == 0 {
		return
	}
	require.EqualValues(e.t, key, m.To.Key)
	require.GreaterOrEqual(e.t, int(m.To.Length), len(m.payload))
	copy(peer.memory(m.To.Addr, len(m.payload)), m.payload)
	m.length, m.payload = len(m.payload), nil
}

// memory returns that at an address, which must be in the table or the buffer.
func (e *end) memory(addr uint64, n int) []byte {
	if addr >= bufferAddr {
		return e.buffer[addr-bufferAddr:][:n]
	}
	return e.table[addr-tableAddr:][:n]
}

// deliverAll delivers everything that is on its way, and returns the words.
func (e *end) deliverAll(peer *end) (words []Word) {
	for len(e.out) > 0 {
		w, err := e.deliver(peer)
		require.NoError(e.t, err)
		words = append(words, w)
	}
	return words
}

// read takes up to n bytes.
func (e *end) read(n int) (b []byte) {
	for n > 0 && e.Unread() > 0 {
		offset, k := e.Next()
		k = min(k, n)
		b = append(b, e.buffer[offset:offset+k]...)
		e.Consume(k)
		n -= k
	}
	return b
}

// update posts the update that is due, if one is.
func (e *end) update() Word { return e.post(e.Update()) }

// The example of two ends that send each other 100, 200 and 300 bytes.
func TestExample(t *testing.T) {
	config := defaults()
	config.Prompt = true
	a, b := connected(t, config, config)
	words := []Word{}
	for _, n := range []int{100, 200, 300} {
		data := bytes.Repeat([]byte{byte(n)}, n)
		require.Equal(t, n, a.write(data, n))
		b.update()
		words = append(append(words, a.deliverAll(b)...), b.deliverAll(a)...)
		require.Equal(t, data, b.read(n))
		require.Equal(t, n, b.write(data, n))
		a.update()
		words = append(append(words, b.deliverAll(a)...), a.deliverAll(b)...)
		require.Equal(t, data, a.read(n))
	}
	require.Equal(t, []Word{0x64, 0x80000180, 0x64, 0x80000180, 0xC8, 0xC8, 0x12C, 0x12C}, words)
	for _, e := range []*end{a, b} {
		require.EqualValues(t, 3, e.sent)
		require.EqualValues(t, 384, e.limit)
		require.Equal(t, [2]Region{{bufferAddr + 600, key, half - 600}, {bufferAddr + half, key, half}}, e.target)
		require.Zero(t, e.using)
		require.Equal(t, 380, e.slots)
		require.Equal(t, 2*half, e.free)
		require.Equal(t, 600, e.place)
		require.EqualValues(t, 3, e.arrived)
		require.Equal(t, 600, e.spare)
		require.Equal(t, 600, e.position)
		require.Zero(t, e.entry)
		require.True(t, e.Idle())
	}
	require.Equal(t, Disconnect, a.post(a.Disconnect()))
	a.deliverAll(b)
	require.True(t, a.Idle() && a.Disconnected() && b.Disconnected() && b.Ended() && b.Gone())
	require.False(t, a.Gone())
}

// A long write into an empty window is cut into few pieces.
func TestLongWrite(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	data, step := make([]byte, 1<<20), FirstData
	for {
		n := a.write(data, step)
		if n == 0 {
			break
		}
		data, step = data[n:], min(2*step, LongData)
	}
	require.Equal(t, []Word{0x4000, 0x8000, 0x4000}, a.deliverAll(b))
	require.Equal(t, half, b.Unread())
}

// A reader that takes 64 KiB at a time gives back one half after the other.
func TestUpdates(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	require.EqualValues(t, 0x80000180, b.update())
	b.deliverAll(a)
	for i, want := range []Word{0x80000183, 0x80000186, 0x80000189, 0x8000018C} {
		for step, n := FirstData, 0; n < half; step = min(2*step, LongData) {
			n += a.write(make([]byte, half-n), step)
		}
		require.Len(t, a.deliverAll(b), 3)
		require.Zero(t, b.update(), "nothing was read")
		b.read(half)
		require.Equal(t, want, b.update())
		m := b.out[0]
		require.EqualValues(t, tableAddr+EntryLen*(i%2), m.To.Addr)
		require.Equal(t, Region{bufferAddr + uint64(i%2*half), key, half}, region(m.Entry[:], false))
		b.deliverAll(a)
	}
}

// Messages of a byte are limited by the credits while the peer does not look,
// and else by its memory.
func TestCredits(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	sendAll := func() (n int) {
		for a.write([]byte{1}, 1) > 0 {
			n++
		}
		return n
	}
	const slots = 384 - ControlSlots
	require.Equal(t, slots, sendAll(), "the send queue is full")
	require.EqualValues(t, 0x80000180, b.update())
	require.Len(t, a.deliverAll(b), slots)
	require.Equal(t, 384-slots, sendAll(), "the credits are used up")
	b.deliverAll(a)
	require.Zero(t, sendAll(), "the update was from before")
	a.deliverAll(b)
	require.EqualValues(t, 0x80000300, b.update(), "without an entry")
	require.False(t, b.out[0].HasEntry)
	b.deliverAll(a)
	require.Equal(t, slots, sendAll())
	require.Equal(t, 384, b.Unread())
}

// The limit wraps.
func TestLimitWraps(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	require.NotZero(t, b.update())
	b.deliverAll(a)
	a.sent, a.limit, b.arrived, b.granted = 65300, 65300+384-(1<<16), 65300, 65300+384
	for range 100 {
		require.Equal(t, 1, a.write([]byte{1}, 1))
		a.deliverAll(b)
		b.read(1)
	}
	b.granted = b.arrived // so that an update is due
	require.EqualValues(t, 0x800000F8, b.update(), "65400 + 384")
	b.deliverAll(a)
	require.EqualValues(t, 248, a.limit)
	for n := range 384 - 4 {
		require.Equalf(t, 1, a.write([]byte{1}, 1), "message %d", n)
		a.deliverAll(b)
	}
}

// While control messages may lie in the peer's receives, a few are left for
// more.
func TestReceivesAreLeft(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	require.NotZero(t, a.update())
	for range 384 - 1 {
		require.Equal(t, 1, a.write([]byte{1}, 1))
		a.deliverAll(b)
	}
	require.Zero(t, a.Room(1))
	b.update()
	b.deliverAll(a)
	require.Equal(t, 1, a.Room(1))
}

func TestShutdowns(t *testing.T) {
	type step struct {
		by   int // 0 or 1
		what string
		word Word // that goes to the peer
	}
	const read, write, closes = "read", "write", "close"
	for name, c := range map[string]struct {
		steps       []step
		ended, gone [2]bool // afterwards
		writes      [2]bool // whether it can still send
	}{
		"write":              {[]step{{0, write, Shutdown}}, [2]bool{false, true}, [2]bool{}, [2]bool{false, true}},
		"write twice":        {[]step{{0, write, Shutdown}, {0, write, 0}}, [2]bool{false, true}, [2]bool{}, [2]bool{false, true}},
		"both write":         {[]step{{0, write, Shutdown}, {1, write, Disconnect}}, [2]bool{true, true}, [2]bool{true, true}, [2]bool{}},
		"read":               {[]step{{0, read, 0}}, [2]bool{}, [2]bool{}, [2]bool{true, true}},
		"read, then write":   {[]step{{0, read, 0}, {0, write, Disconnect}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
		"write, then read":   {[]step{{0, write, Shutdown}, {0, read, Disconnect}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
		"close":              {[]step{{0, closes, Disconnect}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
		"close twice":        {[]step{{0, closes, Disconnect}, {0, closes, 0}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
		"close after peer":   {[]step{{0, closes, Disconnect}, {1, closes, 0}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
		"write, then close":  {[]step{{0, write, Shutdown}, {0, closes, Disconnect}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
		"write after closed": {[]step{{0, closes, Disconnect}, {1, write, 0}}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, defaults(), defaults())
			ends := [2]*end{a, b}
			for _, s := range c.steps {
				e := ends[s.by]
				require.True(t, e.HasControl())
				switch s.what {
				case read:
					e.post(e.CloseRead())
				case write:
					e.post(e.CloseWrite())
				case closes:
					e.post(e.State.Disconnect())
				}
				words := e.deliverAll(ends[1-s.by])
				if s.word == 0 {
					require.Empty(t, words)
				} else {
					require.Equal(t, []Word{s.word}, words)
				}
			}
			for i, e := range ends {
				require.Equal(t, c.ended[i], e.Ended(), "end %d ended", i)
				require.Equal(t, c.gone[i], e.Disconnected(), "end %d disconnected", i)
				require.Equal(t, c.writes[i], e.Room(1) > 0, "end %d writes", i)
			}
		})
	}
	t.Run("both write at once", func(t *testing.T) {
		a, b := connected(t, defaults(), defaults())
		a.post(a.CloseWrite())
		b.post(b.CloseWrite())
		require.Equal(t, []Word{Shutdown}, a.deliverAll(b))
		require.Equal(t, []Word{Shutdown}, b.deliverAll(a))
		require.True(t, a.Disconnected() && b.Disconnected())
		require.False(t, a.Gone() || b.Gone())
	})
}

func TestKeepAlive(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	require.Equal(t, KeepAlive, a.post(a.KeepAlive()))
	require.Zero(t, a.post(a.KeepAlive()), "one is on its way")
	require.Len(t, a.deliverAll(b), 1)
	require.True(t, a.Idle())
	a.write(make([]byte, half), half)
	require.Zero(t, a.post(a.KeepAlive()), "data is on its way")
	a.deliverAll(b)
	a.write([]byte{1}, 1)
	require.Equal(t, KeepAlive, a.post(a.KeepAlive()), "nothing is on its way of which this end will be told")
	a.deliverAll(b)
	require.Equal(t, a.config.SendBuffer, a.free)
	a.post(a.State.Disconnect())
	a.deliverAll(b)
	require.Zero(t, a.post(a.KeepAlive()))
}

// The completions of most small messages need not be known, but before an end
// runs short of something one must be.
func TestSignals(t *testing.T) {
	for name, c := range map[string]struct {
		change       func(*Config)
		size, signal int // the message that is signaled first, from 1 on
	}{
		"queue":        {func(*Config) {}, 1, 96},
		"buffer":       {func(c *Config) { c.SendBuffer = 8192 }, 1000, 2},
		"small buffer": {func(c *Config) { c.SendBuffer = 4096 }, 200, 3},
		"no more":      {func(c *Config) { c.SendBuffer = leastData }, 1, 1},
		"long":         {func(*Config) {}, LongData / 2, 1},
		"prompt":       {func(c *Config) { c.Prompt = true }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			config := defaults()
			c.change(&config)
			a, b := connected(t, config, config)
			for range 3 {
				for i := 1; i <= c.signal; i++ {
					require.Equal(t, c.size, a.write(make([]byte, c.size), c.size))
					require.Equal(t, i == c.signal, a.out[len(a.out)-1].ID != 0, "message %d", i)
				}
				require.False(t, a.Idle())
				a.deliverAll(b)
				require.True(t, a.Idle())
				require.Zero(t, a.Buffered())
				b.read(c.size * c.signal)
				b.update()
				b.deliverAll(a)
			}
		})
	}
}

// So it is with updates. The last word always is signaled, and with its
// completion all is known.
func TestSignalsOfUpdates(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	var signaled []bool
	for range 6 {
		require.Equal(t, half, a.write(make([]byte, half), half))
		a.deliverAll(b)
		b.read(half)
		require.NotZero(t, b.update())
		signaled = append(signaled, b.out[0].ID != 0)
		b.deliverAll(a)
	}
	require.Equal(t, []bool{false, false, true, false, false, true}, signaled)
	b.write([]byte{1}, 1)
	b.post(b.State.Disconnect())
	require.False(t, b.Idle())
	b.deliverAll(a)
	require.True(t, b.Idle() && b.Disconnected())
	require.Zero(t, b.Buffered())
	require.Equal(t, b.config.SendQueue, b.slots+b.control)
}

// Each violation is an error, and changes nothing that the peer could use.
func TestViolations(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(a *State, table []byte)
		word    Word
		length  int
		want    string
	}{
		"no bytes":                {nil, Data(0), 0, "DATA of 0 bytes, with a write of 0 bytes"},
		"other length":            {nil, Data(100), 99, "DATA of 100 bytes, with a write of 99 bytes"},
		"beyond the window":       {nil, Data(half + 1), half + 1, "exceeds the 65536 bytes of room"},
		"far beyond":              {nil, Data(MaxData), MaxData, "exceeds the 65536 bytes of room"},
		"reserved 1":              {nil, Word(1<<29 | 5), 5, "word 0x20000005"},
		"reserved 2":              {nil, Word(2 << 29), 0, "word 0x40000000"},
		"reserved 3":              {nil, Word(3 << 29), 0, "word 0x60000000"},
		"reserved 5":              {nil, Word(5 << 29), 0, "word 0xa0000000"},
		"KEEPALIVE":               {nil, KeepAlive, 0, "KEEPALIVE"},
		"unknown control":         {nil, Disconnect | 3, 0, "word 0xe0000003"},
		"half an entry":           {nil, Update(400), 8, "SGL with limit 400, with a write of 8 bytes"},
		"empty entry":             {nil, Update(400), EntryLen, "entry 1 of the target table is empty"},
		"data after the end":      {func(a *State, _ []byte) { _ = a.Receive(Shutdown, 0, nil) }, Data(1), 1, "after the peer has ended"},
		"data after both":         {func(a *State, _ []byte) { _ = a.Receive(Disconnect, 0, nil) }, Data(1), 1, "after the peer has ended"},
		"used entry":              {change, Update(400), EntryLen, "entry 0 of the target table was replaced before it was used up (65536 bytes left)"},
		"more than the first has": {fill, Data(2), 2, "exceeds the 1 bytes of room"},
		"messages beyond credits": {func(a *State, _ []byte) { a.arrived = a.granted }, Data(1), 1, "beyond the limit of 384 messages"},
		"iomap beyond credits":    {func(a *State, _ []byte) { a.arrived = a.granted }, Word(6 << 29), 24, "beyond the limit of 384 messages"},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := connected(t, defaults(), defaults())
			if c.prepare != nil {
				c.prepare(a.State, a.table)
			}
			unread, target := a.Unread(), a.target
			err := a.Receive(c.word, c.length, a.table)
			require.ErrorIs(t, err, ErrViolation)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, unread, a.Unread())
			require.Equal(t, target, a.target)
		})
	}
}

// change gives entry 1, and leaves an entry 0 in the table that is in use.
func change(a *State, table []byte) {
	for i := range Entries {
		Region{9, 9, half}.put(table[i*EntryLen:], false)
	}
	if err := a.Receive(Update(384), EntryLen, table); err != nil {
		panic(err)
	}
}

// fill leaves room for one byte in the first half, and has given the other.
func fill(a *State, table []byte) {
	a.Update()
	if err := a.Receive(Data(half-1), half-1, table); err != nil {
		panic(err)
	}
}

// An entry is looked at only when a word announces it, and once.
func TestEntriesAreCopied(t *testing.T) {
	a, b := connected(t, defaults(), defaults())
	Region{9, 9, 9}.put(a.table[EntryLen:], false)
	require.NoError(t, a.Receive(Update(384), 0, a.table), "announces none")
	require.Zero(t, a.target[1])
	b.update()
	b.deliverAll(a)
	Region{9, 9, 9}.put(a.table[EntryLen:], false)
	require.Equal(t, Region{bufferAddr + half, key, half}, a.target[1])
}

// Between ends of different byte orders, entries are in the byte order of the
// reading end.
func TestByteOrders(t *testing.T) {
	big := defaults()
	big.BigEndian = true
	a, b := connected(t, big, defaults())
	for from, to := range map[*end]*end{a: b, b: a} {
		from.update()
		from.deliverAll(to)
		require.Equal(t, Region{bufferAddr + half, key, half}, to.target[1])
	}
}

// Two ends of any sizes that do things in any order get every byte, whatever is
// on its way.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { anyOrder(t, seed, false) })
		t.Run(fmt.Sprintf("%d, messages", seed), func(t *testing.T) { anyOrder(t, seed, true) })
	}
}

func anyOrder(t *testing.T, seed uint64, messages bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	config := func() Config {
		c := defaults()
		c.BigEndian, c.Prompt, c.Whole, c.Messages = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, messages
		c.SendQueue = ControlSlots + 2 + r.IntN(40)
		c.Credits = uint16(1 + r.IntN(40))
		c.SendBuffer = leastData + r.IntN(3*leastData)
		c.Buffer.Length = uint32(2 + r.IntN(4*leastData))
		return c
	}
	accepts := config()
	accepts.Answers = messages
	a, b := connected(t, config(), accepts)
	ends := [2]*end{a, b}
	const total = 10_000
	var sent, got [2]int
	written := func(i int) byte { return byte(i * 7 >> 3) }
	for steps := 0; got[0]+got[1] < 2*total; steps++ {
		if steps > 1_000_000 {
			require.FailNow(t, "the ends wait for each other")
		}
		i := r.IntN(2)
		e, peer := ends[i], ends[1-i]
		switch r.IntN(5) {
		case 0:
			piece := make([]byte, min(total-sent[i], 1+r.IntN(3000)))
			for k := range piece {
				piece[k] = written(sent[i] + k)
			}
			if len(piece) > 0 {
				sent[i] += e.write(piece, LongData)
			}
		case 1, 2:
			if len(e.out) > 0 {
				_, err := e.deliver(peer)
				require.NoError(t, err)
			}
		case 3:
			for _, c := range e.read(1 + r.IntN(2000)) {
				if c != written(got[i]) {
					require.FailNow(t, "another byte", "at %d", got[i])
				}
				got[i]++
			}
		case 4:
			e.update()
		}
		require.True(t, e.slots >= 0 && e.control >= 0)
	}
	require.Equal(t, [2]int{total, total}, sent)
}

// Without immediate data, a message with a write takes two requests, and one
// without takes one.
func TestMessages(t *testing.T) {
	config := defaults()
	config.Messages = true
	a, b := connected(t, config, config)
	for range 3 {
		a.write(make([]byte, 100), 100)
	}
	require.Equal(t, config.SendQueue-ControlSlots-6, a.slots)
	require.EqualValues(t, 0x80000180, a.update())
	require.Equal(t, ControlSlots-2, a.control)
	a.post(a.CloseWrite())
	require.Equal(t, ControlSlots-3, a.control)
	require.Equal(t, []Word{100, 100, 100, 0x80000180, Shutdown}, a.deliverAll(b))
	require.True(t, a.Idle())
	require.Len(t, b.read(300), 300)
	require.Equal(t, Region{bufferAddr + half, key, half}, b.target[1])
	require.Equal(t, make([]byte, EntryLen), b.table[EntryLen:], "the entry was taken")

	config.SendQueue = ControlSlots + 3
	a, b = connected(t, config, config)
	require.Equal(t, 1, a.write([]byte{1}, 1))
	require.Zero(t, a.Room(1), "one request is left")
	require.Error(t, a.Receive(Data(0), 4, a.table))
	a.deliverAll(b)
	require.Equal(t, 1, a.Room(1))
}

// An update does not say whether it has an entry. That of the next update may
// be in the table already, and is then taken, but neither twice nor while the
// one before it is in use.
func TestEntriesOfMessages(t *testing.T) {
	config := defaults()
	config.Messages = true
	a, _ := connected(t, config, config)
	update := func(want ...Region) {
		t.Helper()
		require.NoError(t, a.Receive(Update(384), 4, a.table))
		require.Equal(t, want, a.target[:])
	}
	first, second, third := Region{bufferAddr, key, half}, Region{bufferAddr + half, key, half}, Region{bufferAddr, key, 9}
	update(first, Region{})
	second.put(a.table[EntryLen:], false)
	update(first, second)
	update(first, second)
	third.put(a.table, false)
	update(first, second)
	a.post(a.Send(half), true)
	update(third, second)
	a.post(a.Send(half), true)
	update(third, Region{})

	// One that is being written, with its halves in any order.
	var whole [EntryLen]byte
	second.put(whole[:], false)
	for at := 0; at < EntryLen; at += EntryLen / 2 {
		entry := a.table[EntryLen:][:EntryLen]
		clear(entry)
		copy(entry[at:], whole[at:][:EntryLen/2])
		update(third, Region{})
	}
	copy(a.table[EntryLen:], whole[:])
	update(third, second)
}

// An end that only answers sends nothing before the peer's first message.
func TestAnswers(t *testing.T) {
	config := defaults()
	config.Answers = true
	a, b := connected(t, config, defaults())
	require.Zero(t, a.update())
	require.Zero(t, a.Room(1))
	require.Zero(t, a.RoomDirect(1))
	require.Zero(t, a.RoomOutside(1))
	require.False(t, a.HasControl())
	require.Zero(t, a.post(a.KeepAlive()))
	b.update()
	b.deliverAll(a)
	require.NotZero(t, a.update())
	require.Equal(t, 1, a.Room(1))
	require.True(t, a.HasControl())
}

// Whatever a peer sends, the state stays sound: what can be read is in the
// buffer, and what is posted has a slot.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 1, 0x80, 0, 1, 0x80, 16, 0xe0, 0, 0, 2, 0})
	f.Add([]byte{0, 0, 8, 0, 255, 0, 0, 8, 0, 255, 0x20, 0, 0, 0, 0})
	f.Add([]byte{0xc0, 0, 0, 0, 24, 0xc0, 0, 0, 1, 24, 0xc0, 0, 0, 2, 24, 0xc0, 0, 0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		c := defaults()
		c.SendQueue, c.Credits, c.SendBuffer, c.Buffer.Length, c.IOMaps = 16, 16, 4096, 4096, 2
		c.Messages = len(script)%5 == 1
		a, _ := connected(t, c, c)
		over := false
		for len(script) >= 5 && !over {
			w, length := Word(binary.BigEndian.Uint32(script)), int(script[4])
			if length == 255 {
				length = w.Value()
			}
			copy(a.table, script)
			script = script[5:]
			over = a.Receive(w, length, a.table) != nil
			offset, n := a.Next()
			require.True(t, offset >= 0 && offset < 4096 && n >= 0 && offset+n <= 4096)
			require.True(t, a.Unread() >= n && a.Unread() <= 4096)
			a.read(length)
			a.update()
			if a.Room(length) > 0 {
				require.LessOrEqual(t, a.Room(length), 4096)
				a.post(a.Send(a.Room(length)), true)
			}
			if to, ok := a.Find(uint64(length)); ok {
				require.NotZero(t, to.Length)
				if n := a.RoomDirect(int(min(int64(to.Length), 4096))); n > 0 {
					a.out = append(a.out, message{Post: a.WriteDirect(to, n)})
				}
			}
			for len(a.out) > ControlSlots {
				a.Complete(a.out[0].ID)
				a.out = a.out[1:]
			}
			require.True(t, a.slots >= 0 && a.control >= 0 && a.slots+a.control <= 16)
		}
	})
}
