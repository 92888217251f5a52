// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// version is the version of perftest whose protocol this package uses.
const version = "6.06"

// The sizes of messages, in bytes.
const (
	versionSize = 16
	keysSize    = 59  // size of a key without a GID
	keysSizeGID = 108 // size of a key with a GID
)

// key is the information about a queue pair that an end sends to the other, in
// perftest's text form "%04x:...:".
type key struct {
	LID, ReadDepth, QPN, PSN uint32
	Buffer                   ibverbs.RemoteBuffer // memory of the end, without its length
	GID                      ibverbs.GID          // GID of the port; zero without RoCE
	SRQ                      uint32
}

// text returns the key as a message, with its final zero.
func (k key) text() []byte {
	s := fmt.Sprintf("%04x:%04x:%06x:%06x:%08x:%016x:", k.LID, k.ReadDepth, k.QPN, k.PSN, k.Buffer.RKey, k.Buffer.Addr)
	if k.GID.IsZero() {
		return append(fmt.Appendf(nil, "%s%08x", s, k.SRQ), 0)
	}
	for _, b := range k.GID {
		s += fmt.Sprintf("%02x:", b)
	}
	return append(fmt.Appendf(nil, "%s%08x:", s, k.SRQ), 0)
}

// parseKey parses a message with a key.
func parseKey(message []byte) (k key, err error) {
	text, _, _ := bytes.Cut(message, []byte{0})
	parts := strings.Split(strings.TrimSuffix(string(text), ":"), ":")
	hasGID := len(message) == keysSizeGID
	if want := map[bool]int{false: 7, true: 23}[hasGID]; len(parts) != want {
		return k, fmt.Errorf("the peer's key has %d parts, not %d: %q", len(parts), want, text)
	}
	values := make([]uint64, len(parts))
	for i, p := range parts {
		bits := 32
		switch {
		case i == 5:
			bits = 64
		case i > 5 && i < len(parts)-1:
			bits = 8
		}
		if values[i], err = strconv.ParseUint(p, 16, bits); err != nil {
			return k, fmt.Errorf("the peer's key: %w in %q", err, text)
		}
	}
	k = key{
		LID: uint32(values[0]), ReadDepth: uint32(values[1]), QPN: uint32(values[2]), PSN: uint32(values[3]),
		Buffer: ibverbs.RemoteBuffer{RKey: uint32(values[4]), Addr: values[5]}, SRQ: uint32(values[len(values)-1]),
	}
	if hasGID {
		for i := range k.GID {
			k.GID[i] = byte(values[6+i])
		}
	}
	return k, nil
}

// control is the TCP connection over which the ends agree on the test.
type control struct {
	net.Conn
	isClient bool
	plan     plan
	mine     []key          // key of each queue pair of this end
	peerQPNs []uint32       // numbers of the peer's queue pairs, once they are known
	from     *io.PipeReader // data from the peer
	started  time.Time
	unread   atomic.Int64  // time since started, in nanoseconds, at which the first unread data of the peer arrived; 0 if there is none
	gone     chan struct{} // closed when the peer or this end has closed the connection
	stop     func() bool
	end      context.CancelCauseFunc
}

// errGone is the cause of a failure after the peer has closed the connection.
var errGone = fmt.Errorf("the peer has closed the control connection: %w", io.EOF)

// grace is how long to continue after the peer has closed the connection,
// because messages that it sent before may still arrive.
const grace = 2 * time.Second

// patience is how long messages of a peer that has finished may take to arrive,
// even if packets are lost.
const patience = 10 * time.Second

// newControl takes over a connection. When ctx ends, waits for the peer end,
// too. The context that newControl returns also ends when the peer has closed
// the connection.
func newControl(ctx context.Context, conn net.Conn, isClient bool) (*control, context.Context) {
	c := &control{Conn: conn, isClient: isClient, mine: make([]key, 1), started: time.Now(), gone: make(chan struct{})}
	c.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	ctx, c.end = context.WithCancelCause(ctx)
	var to *io.PipeWriter
	c.from, to = io.Pipe()
	go func() {
		defer close(c.gone)
		_, _ = io.Copy(recorder{to, c}, conn) // an error of conn is also found by writing
		_ = to.Close()
		time.AfterFunc(grace, func() { c.end(errGone) })
	}()
	return c, ctx
}

// recorder is a writer that passes the peer's data on, and records since when
// data is unread.
type recorder struct {
	*io.PipeWriter
	c *control
}

func (r recorder) Write(b []byte) (int, error) {
	r.c.unread.Store(int64(time.Since(r.c.started)))
	defer r.c.unread.Store(0)
	return r.PipeWriter.Write(b) // returns when all data is read
}

// ahead returns an error if the peer has finished long ago, and has already
// sent what comes next, although this end still waits for messages.
func (c *control) ahead() error {
	since := c.unread.Load()
	if since == 0 || time.Since(c.started)-time.Duration(since) < patience {
		return nil
	}
	return errors.New("the peer is done, but messages are missing here: give both ends the same test and number of messages (-n) or duration (-D)")
}

// done tells the peer that this end sends nothing more. It ignores errors,
// because the only one is that the peer has closed the connection.
func (c *control) done() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	} else {
		_ = c.Conn.Close()
	}
}

// hangUp closes the connection, which tells the peer that this end has failed,
// before the other objects are closed, which may take long.
func (c *control) hangUp() { _ = c.Conn.Close() }

func (c *control) Close() error {
	c.stop()
	err := c.Conn.Close()
	if errors.Is(err, net.ErrClosed) { // hangUp has closed it
		err = nil
	}
	err = errors.Join(err, c.from.Close())
	<-c.gone
	c.end(nil)
	return err
}

// exchange sends a message and returns the peer's message of the same length.
// The client sends first.
func (c *control) exchange(mine []byte) ([]byte, error) {
	theirs := make([]byte, len(mine))
	write := func() error { _, err := c.Write(mine); return err }
	read := func() error { _, err := io.ReadFull(c.from, theirs); return err }
	steps := []func() error{read, write}
	if c.isClient {
		steps = []func() error{write, read}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("agree with the peer: %w", err)
		}
	}
	return theirs, nil
}

// settle exchanges everything but keys with the peer, and returns the peer's
// MTU.
func (c *control) settle(mtu ibverbs.MTU) (ibverbs.MTU, error) {
	theirs, err := c.exchange(append([]byte(version+"\x00"), c.plan.bytes()...))
	if err != nil {
		return 0, err
	}
	text, rest, _ := bytes.Cut(theirs, []byte{0})
	if v, err := strconv.ParseFloat(string(text), 64); err != nil || v < 5.7 {
		return 0, fmt.Errorf("the peer is perftest %q; verbena perf supports 5.70 and later", text)
	}
	if err := c.plan.compare(rest); err != nil {
		return 0, err
	}
	for _, number := range []uint32{4096, 64} { // bytes: the cycle of small messages in a buffer, and a cache line
		if _, err := c.exchange(binary.BigEndian.AppendUint32(nil, number)); err != nil {
			return 0, err
		}
	}
	theirs, err = c.exchange([]byte{'0' + byte(mtu), 0})
	if err != nil {
		return 0, err
	}
	if m := ibverbs.MTU(theirs[0] - '0'); m.Bytes() != 0 {
		return m, nil
	}
	return 0, fmt.Errorf("the peer's MTU is %q, not a digit from 1 (256 bytes) to 5 (4096 bytes)", theirs[:1])
}

// keys sends the key of queue pair i to the peer, and returns the peer's.
func (c *control) keys(i int) (key, error) {
	theirs, err := c.exchange(c.mine[i].text())
	if err != nil {
		return key{}, err
	}
	return parseKey(theirs)
}

// sync waits until the peer has reached the same point, by exchanging the first
// keys once more. If the peer has one more queue pair than this end, the peer
// sends the key of that queue pair instead.
func (c *control) sync() error { return c.syncWith(0) }

// syncWith is like sync, but exchanges the keys of queue pair i.
func (c *control) syncWith(i int) error {
	theirs, err := c.keys(i)
	if err == nil && i < len(c.peerQPNs) && c.peerQPNs[i] != 0 && theirs.QPN != c.peerQPNs[i] {
		return errQPs
	}
	return err
}

// errQPs reports that the ends have different numbers of queue pairs.
var errQPs = errors.New("the peer uses another number of queue pairs: give both ends the same -q")

// report sends the client's row to the server, which prints it, and returns the
// peer's row.
func (c *control) report(r Row) (Row, error) {
	theirs := Row{}
	for _, field := range []struct {
		mine   uint64
		theirs func(uint64)
	}{
		{uint64(r.Bytes), func(v uint64) { theirs.Bytes = int(v) }},
		{uint64(r.Iterations), func(v uint64) { theirs.Iterations = int(v) }},
		{math.Float64bits(r.Peak), func(v uint64) { theirs.Peak = math.Float64frombits(v) }},
		{math.Float64bits(r.Average), func(v uint64) { theirs.Average = math.Float64frombits(v) }},
		{math.Float64bits(r.MessageRate), func(v uint64) { theirs.MessageRate = math.Float64frombits(v) }},
	} {
		b, err := c.exchange(binary.BigEndian.AppendUint64(nil, field.mine))
		if err != nil {
			return Row{}, err
		}
		field.theirs(binary.BigEndian.Uint64(b))
	}
	for _, rate := range []*float64{&theirs.Peak, &theirs.Average, &theirs.MessageRate} {
		if math.IsInf(*rate, 0) || math.IsNaN(*rate) { // not a measurement
			*rate = 0
		}
	}
	return theirs.withGigabits(), nil
}

// finish tells the peer that this end has finished, and waits until the peer
// has.
func (c *control) finish() error {
	if err := c.sync(); err != nil {
		return err
	}
	done := []byte("done\x00")
	if _, err := c.Write(done); err != nil {
		return err
	}
	_, err := io.ReadFull(c.from, done)
	return err
}
