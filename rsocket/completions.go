// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"fmt"
	"slices"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// handle handles completions of the connection, of which those of receives have
// received got. If the completion queue has failed, err is the reason. The
// caller holds the pump.
func (c *Conn) handle(wcs []ibverbs.WC, got []message, err error) {
	c.mu.Lock()
	c.take(wcs, got)
	if err != nil {
		c.fail(failure(err))
	}
	c.unlock()
}

// unlock unlocks c.mu, and disconnects if the peer has broken the protocol.
func (c *Conn) unlock() {
	aborts := c.aborts
	c.aborts = false
	c.mu.Unlock()
	if aborts {
		_ = c.rdma.ID().Disconnect() // fails if the peer has disconnected already
	}
}

// take handles completions of the connection. The caller holds c.mu.
func (c *Conn) take(wcs []ibverbs.WC, got []message) {
	if !c.connected { // the peer's Hello is not known yet
		n := max(0, min(len(wcs), c.config.RecvQueue+spareReceives-len(c.early)))
		c.early, c.earlyGot = append(c.early, wcs[:n]...), append(c.earlyGot, got[:n]...)
		return
	}
	var flushed error
	for i := range wcs {
		wc := &wcs[i]
		if !isReceive(wc) && wc.ID() != 0 {
			c.inFlight--
		}
		switch {
		case wc.Status() == ibverbs.WCFlushed:
			flushed = wc.Err()
		case wc.Status() != ibverbs.WCSuccess:
			if !c.state.Disconnected() { // a disconnected peer need not answer
				c.fail(failure(wc.Err()))
			}
		case isReceive(wc):
			if c.part == nil {
				c.receives.completed(wc)
			}
			c.receive(wc, got[i])
		default:
			c.complete(wc.ID())
		}
	}
	if flushed != nil {
		c.flushed(flushed)
	}
	c.closer.signal()
	c.settle()
	c.changed()
}

// hasEarlyData reports whether the peer has sent a message before establish was
// called.
func (c *Conn) hasEarlyData() bool {
	c.pump.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.early, func(wc ibverbs.WC) bool { return wc.Status() == ibverbs.WCSuccess })
}

// flushed is called when a request was flushed, with the error of its
// completion. rdmacm usually reports a moment later why the connection has
// ended. If it does not within causePatience, flushed fails the connection with
// err.
func (c *Conn) flushed(err error) {
	if c.err != nil || c.isOver || c.awaitsCause || c.state.Disconnected() {
		return
	}
	c.awaitsCause = true
	time.AfterFunc(causePatience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.isOver {
			c.fail(failure(err))
		}
	})
}

// causePatience limits the time for which flushed waits for rdmacm's report.
const causePatience = time.Second

// receive handles a received message.
func (c *Conn) receive(wc *ibverbs.WC, got message) {
	err, wasSilent := errNoWord, c.state.Silent()
	if got.ok {
		err = c.state.Receive(got.word, wc.ByteLen(), c.table)
	}
	if err != nil && c.err == nil {
		c.fail(err)
		c.aborts = true
	}
	if c.state.Unread() > 0 || c.state.Ended() {
		c.reader.signal()
	}
	if got.word.Kind() != protocol.KindData || wasSilent {
		c.writer.signal()
	}
}

var errNoWord = fmt.Errorf("message without a word: no immediate data (on iWARP: not 4 bytes): %w", protocol.ErrViolation)

// complete handles the completion of the request with that ID.
func (c *Conn) complete(id uint64) {
	c.state.Complete(protocol.ID(id & idMask))
	if chunk := id >> chunkShift; chunk > 0 {
		c.direct.pending[chunk-1]--
	}
	c.giveBack()
	c.writer.signal()
}
