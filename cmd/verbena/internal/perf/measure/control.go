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

// version is perftest's whose protocol this is.
const version = "6.06"

// The sizes of messages, in bytes.
const (
	versionSize = 16
	keysSize    = 59  // without a GID
	keysSizeGID = 108 // with one
)

// key is what an end tells the other: perftest's "%04x:...:" text.
type key struct {
	LID, ReadDepth, QPN, PSN uint32
	Buffer                   ibverbs.RemoteBuffer // without its length
	GID                      ibverbs.GID          // zero without RoCE
	SRQ                      uint32
}

// text returns the message, with its trailing zero.
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

// parseKey reads a message.
func parseKey(message []byte) (k key, err error) {
	text, _, _ := bytes.Cut(message, []byte{0})
	parts := strings.Split(strings.TrimSuffix(string(text), ":"), ":")
	hasGID := len(message) == keysSizeGID
	if want := map[bool]int{false: 7, true: 23}[hasGID]; len(parts) != want {
		return k, fmt.Errorf("keys of the peer with %d parts, not %d: %q", len(parts), want, text)
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
			return k, fmt.Errorf("keys of the peer: %w in %q", err, text)
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

// control is the TCP connection over which the ends agree.
type control struct {
	net.Conn
	isClient bool
	plan     plan
	mine     []key          // of each queue pair
	peerQPNs []uint32       // once they are known
	from     *io.PipeReader // what the peer says
	started  time.Time
	unread   atomic.Int64  // when the first unread data of the peer arrived: nanoseconds after started, or 0
	gone     chan struct{} // closed when the peer has closed the connection, or this end has
	stop     func() bool
	end      context.CancelCauseFunc
}

// errGone is the cause of what ended because the peer has closed the
// connection.
var errGone = fmt.Errorf("the peer has gone: %w", io.EOF)

// grace is how long to go on after that, because what the peer did before may
// still be on its way.
const grace = 2 * time.Second

// patience is how long a peer that is done is believed to have sent something
// that is still on its way, lost packets included.
const patience = 10 * time.Second

// newControl takes a connection over. When ctx ends, so does what waits for the
// peer; the context that it returns also ends when the peer has gone.
func newControl(ctx context.Context, conn net.Conn, isClient bool) (*control, context.Context) {
	c := &control{Conn: conn, isClient: isClient, mine: make([]key, 1), started: time.Now(), gone: make(chan struct{})}
	c.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	ctx, c.end = context.WithCancelCause(ctx)
	var to *io.PipeWriter
	c.from, to = io.Pipe()
	go func() {
		defer close(c.gone)
		_, _ = io.Copy(noting{to, c}, conn) // what is wrong with conn, writing tells too
		_ = to.Close()
		time.AfterFunc(grace, func() { c.end(errGone) })
	}()
	return c, ctx
}

// noting hands on what the peer says, and notes since when it is unread.
type noting struct {
	*io.PipeWriter
	c *control
}

func (n noting) Write(b []byte) (int, error) {
	n.c.unread.Store(int64(time.Since(n.c.started)))
	defer n.c.unread.Store(0)
	return n.PipeWriter.Write(b) // when all is read
}

// ahead returns an error if the peer has been done for long, and speaks of what
// comes next, although this end still waits for messages.
func (c *control) ahead() error {
	since := c.unread.Load()
	if since == 0 || time.Since(c.started)-time.Duration(since) < patience {
		return nil
	}
	return errors.New("the peer is done, but messages are missing here: give both ends the same test and number of messages (-n) or duration (-D)")
}

// done tells the peer that this end says nothing more. The only error is that
// the peer has gone, which is what done is for.
func (c *control) done() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	} else {
		_ = c.Conn.Close()
	}
}

// hangUp tells the peer that this end has failed, however long it takes to
// close the rest.
func (c *control) hangUp() { _ = c.Conn.Close() }

func (c *control) Close() error {
	c.stop()
	err := c.Conn.Close()
	if errors.Is(err, net.ErrClosed) { // by hangUp
		err = nil
	}
	err = errors.Join(err, c.from.Close())
	<-c.gone
	c.end(nil)
	return err
}

// exchange sends a message and returns the peer's, which is as long. The client
// speaks first.
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

// settle agrees about everything but keys, and returns the peer's MTU.
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
	return 0, fmt.Errorf("the peer's MTU is %q", theirs)
}

// keys tells the peer about a queue pair of this end, and returns its key.
func (c *control) keys(i int) (key, error) {
	theirs, err := c.exchange(c.mine[i].text())
	if err != nil {
		return key{}, err
	}
	return parseKey(theirs)
}

// sync waits until the peer has come as far as this. It says so with its first
// key once more, unless it has a queue pair more than this end, and that one's
// key is still to come.
func (c *control) sync() error { return c.syncWith(0) }

// syncWith is like sync, but exchanges the keys of queue pair i instead of the
// first one's.
func (c *control) syncWith(i int) error {
	theirs, err := c.keys(i)
	if err == nil && i < len(c.peerQPNs) && c.peerQPNs[i] != 0 && theirs.QPN != c.peerQPNs[i] {
		return errQPs
	}
	return err
}

// errQPs is of ends whose numbers of queue pairs differ.
var errQPs = errors.New("the peer uses another number of queue pairs: give both ends the same -q")

// report tells the peer the client's row, for the server to print.
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
		if math.IsInf(*rate, 0) || math.IsNaN(*rate) { // which is no measurement
			*rate = 0
		}
	}
	return theirs.withGigabits(), nil
}

// finish says that this end is done, and waits until the other is.
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
