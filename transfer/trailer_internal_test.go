// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// A batch's notification goes with its data, if nothing else is on the way.
func TestTrailersAreUsed(t *testing.T) {
	need(t)
	r := newRig(t, Config{})
	_, err := r.engine.Alloc(4096, RegionConfig{Name: "memory", Access: WriteAccess})
	require.NoError(t, err)
	a, err := New(Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	p, err := a.Dial(r.ctx, r.at, DialConfig{})
	require.NoError(t, err)
	accepted, err := r.ln.Accept(r.ctx)
	require.NoError(t, err)
	remote, err := p.Region(r.ctx, "memory")
	require.NoError(t, err)
	items := func() int {
		s := p.session.stream
		s.mu.Lock()
		defer s.mu.Unlock()
		return int(s.first) + len(s.items)
	}
	before := items()
	b := p.NewBatch(1)
	for range 10 {
		b.Reset()
		require.NoError(t, b.Write(remote, 0, make([]byte, 100)))
		require.NoError(t, b.Notify([]byte("written")))
		require.NoError(t, b.Submit(r.ctx))
		require.NoError(t, b.Wait(r.ctx))
		message, err := accepted.Receive(r.ctx)
		require.NoError(t, err)
		require.Equal(t, "written", string(message))
	}
	require.Equal(t, before, items(), "notifications went by the control connection")
	require.EqualValues(t, 10, p.Stats().Sent)
}

// What a lost path carried is repeated, unless its trailer has arrived. If the
// trailer has not, the notification is sent after the data.
func TestTrailerOfLostPath(t *testing.T) {
	for name, c := range map[string]struct {
		arrived, completed bool // the trailer at the peer, and the slice as far as this end knows
		acknowledged       bool // whether the peer says at once that the trailer has arrived
		ends               bool // whether the session then ends
		told               bool // whether only the end says that the trailer has arrived
		canceled           bool // whether the batch is canceled while the trailer is under way
	}{
		"lost":                   {},
		"arrived":                {arrived: true},
		"acknowledged":           {arrived: true, acknowledged: true},
		"acknowledged at end":    {arrived: true, acknowledged: true, ends: true},
		"told at end":            {arrived: true, ends: true, told: true},
		"completed, told at end": {arrived: true, completed: true, ends: true, told: true},
		"lost behind data":       {completed: true},
		"arrived behind data":    {arrived: true, completed: true},
		"canceled, lost":         {canceled: true},
		"canceled, arrived":      {canceled: true, arrived: true},
		"canceled behind data":   {canceled: true, completed: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := lone(t)
			p := s.peer
			lost, err := newPath(s, 7, new(device), new(domain), func() {})
			require.NoError(t, err)
			lost.trailerMemory = make([]byte, trailerLen)
			require.NoError(t, handle(t, s, offered(func(o *offer) { o.access = WriteAccess })))
			b := p.NewBatch(1)
			require.NoError(t, b.Write(s.names["name"], 0, make([]byte, 1)))
			require.NoError(t, b.Notify([]byte("x")))
			b.state, b.unfinished, b.mayTrail, b.firstPath = submitted, 1, true, lost
			b.requests[0].issued, b.requests[0].inFlight, s.names["name"].inFlight = 1, 1, 1
			f := &flight{n: 1}
			f.slices[0] = slice{batch: b, n: 1}
			p.mu.Lock()
			s.addTrailer(f, lost)
			require.Equal(t, trailerHeader+1, f.trailer)
			require.EqualValues(t, 1, s.sent)
			again := &flight{n: 1, slices: f.slices}
			s.addTrailer(again, lost)
			require.Zero(t, again.trailer, "there is one already")
			if c.completed {
				b.sliceDone(&f.slices[0], nil)
				require.Equal(t, notifying, b.state)
			} else {
				s.stranded[lost] = append(s.stranded[lost], f.slices[0])
			}
			p.mu.Unlock()
			if c.canceled {
				b.Cancel()
			}
			if c.acknowledged {
				require.NoError(t, s.acknowledged(lost))
			}
			if c.told {
				require.ErrorIs(t, handle(t, s, numbered(itemEnd, 1)), errEnded)
			}
			p.mu.Lock()
			s.pathDestroyed(lost)
			p.mu.Unlock()
			if c.ends {
				s.end(errEnded)
				require.NoError(t, b.Wait(t.Context()), "the peer has it all")
				return
			}
			require.ErrorIs(t, s.fenced(7, 2), syscall.EPROTO)
			require.NoError(t, s.fenced(7, uint64(boolInt(c.arrived))))
			if c.canceled {
				err := b.Wait(t.Context())
				require.Equal(t, c.arrived, err == nil)
				require.Equal(t, !c.arrived, errors.Is(err, ErrCanceled))
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case c.canceled:
				require.Empty(t, p.retries)
				require.Equal(t, byte(itemFence), s.stream.items[len(s.stream.items)-1].item[0], "the notification was sent again")
			case c.arrived:
				require.Empty(t, p.retries, "written again after the notification")
				require.Equal(t, finished, b.state)
			case c.completed:
				require.Equal(t, notifying, b.state)
				require.Equal(t, byte(itemNotify), s.stream.items[len(s.stream.items)-1].item[0])
			default:
				require.Equal(t, submitted, b.state)
				require.Len(t, p.retries, 1)
			}
			require.Nil(t, s.trailer.path)
		})
	}
}

// What the peer's program has taken has arrived.
func TestTrailerThatWasTakenArrived(t *testing.T) {
	s := lone(t)
	s.trailer.path, s.sent = &path{number: 7}, 1
	require.NoError(t, handle(t, s, numbered(itemCredit, 1)))
	require.ErrorIs(t, s.fenced(7, 0), syscall.EPROTO)
	require.EqualValues(t, 1, s.sent)
}

// Acknowledgements of what was not sent break the protocol.
func TestAcknowledgementOfNoTrailer(t *testing.T) {
	s := lone(t)
	require.ErrorIs(t, s.acknowledged(new(path)), syscall.EPROTO)
}

// A peer that breaks the protocol on a data connection is closed.
func TestBreachesOnDataConnections(t *testing.T) {
	need(t)
	for name, messages := range map[string][]int{ // their lengths
		"too many notifications":              {2, 2, 2},
		"an acknowledgement":                  {0},
		"an acknowledgement of what has come": {2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Mailbox: 2})
			_, p, w := r.session()
			conn, err := rdmacm.Dial(r.ctx, r.at, ptr(dataConfig(greeting{kind: kindData, path: 1, token: w.token})))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			memory, err := conn.Alloc(2, 0)
			require.NoError(t, err)
			require.NoError(t, conn.Send(r.ctx))
			for _, n := range messages {
				var segments []ibverbs.Segment
				if n > 0 {
					segments = append(segments, memory.Sub(0, n))
				}
				if conn.Send(r.ctx, segments...) != nil {
					break // the peer has ended the connection
				}
			}
			cmtest.Take(t, p.Done(), "the end of the peer")
			require.ErrorIs(t, p.Err(), syscall.EPROTO)
		})
	}
	r := newRig(t, Config{})
	r.works()
}

// An end that has received a notification and closes the session tells the
// other end first that the notification has arrived.
func TestEndAcknowledges(t *testing.T) {
	s := lone(t)
	require.NoError(t, s.takeNotification([]byte("on a data connection")))
	var told encoder
	ended := make(chan struct{})
	taken := func(it item) error {
		err := s.takeNotification(it.body)
		began := make(chan struct{})
		go func() { // the program has it
			close(began)
			s.sendEnd(nil)
			told = make([]byte, messageLen)
			told = told[:s.stream.frame(told)]
			close(ended)
		}()
		<-began
		for range 1000 {
			runtime.Gosched()
		}
		return err
	}
	require.NoError(t, s.stream.take(items(message(1)), taken))
	<-ended
	f, err := decodeFrame(told)
	require.NoError(t, err)
	require.EqualValues(t, 1, f.received)
	it, ok, err := f.next()
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, itemEnd, it.kind)
	n, err := decodeNumber(it)
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
}
