// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-go/verbena/rdmacm"
)

// Handshakes that complete although they were ended to make room find a place
// among the connections that wait for Accept, beside all that are under way.
func TestRoomForHandshakesThatWereEnded(t *testing.T) {
	for _, backlog := range []int{1, 2, maxHandshakes} {
		synctest.Test(t, func(t *testing.T) {
			var l listenQueue
			release := make(chan struct{})
			l.init(t.Context(), backlog, func(_ context.Context, _ *rdmacm.Request, h *handshake) (*Conn, error) {
				l.asked(h)
				<-release // the peer completes it, whatever happens to its context
				return new(Conn), nil
			})
			for range backlog {
				l.enter(new(rdmacm.Request))
			}
			for range 2 * maxEnding {
				l.enter(new(rdmacm.Request))
				time.Sleep(2 * longPatience)
			}
			l.mu.Lock()
			underWay, room := len(l.underWay), cap(l.ready)
			l.mu.Unlock()
			assert.Equal(t, l.places()+maxEnding, underWay)
			assert.GreaterOrEqual(t, room, backlog-1+underWay, "a handshake that completes waits for Accept, and Close for it")
			close(release)
			for range underWay {
				<-l.ready
			}
			l.timer.Stop()
			l.mu.Lock()
			l.closed = true
			l.mu.Unlock()
			synctest.Wait()
		})
	}
}

// A handshake whose peer seems late as this process did not run is not ended at
// once.
func TestLateTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l listenQueue
		ended := make(chan struct{}, 5)
		l.init(t.Context(), 2, func(ctx context.Context, _ *rdmacm.Request, h *handshake) (*Conn, error) {
			l.asked(h)
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		})
		for range 3 { // two handshakes, and one request that waits
			l.enter(new(rdmacm.Request))
			synctest.Wait()
		}
		const stopped = 10 * longPatience
		l.mu.Lock()
		for h := range l.underWay {
			h.began, h.asked = h.began.Add(-stopped), h.asked.Add(-stopped)
		}
		l.alarm = l.alarm.Add(-stopped)
		l.mu.Unlock()
		l.enter(new(rdmacm.Request)) // may come before the timer
		synctest.Wait()
		select {
		case <-ended:
			assert.Fail(t, "the handshake was ended at once")
		default:
		}
		<-ended // in the end it is
		l.mu.Lock()
		l.closed = true
		for h := range l.underWay {
			h.end(nil)
		}
		l.timer.Stop()
		l.mu.Unlock()
		synctest.Wait()
	})
}

// No handshake of a burst is ended whose peer answers, even if acceptances and
// answers were lost: Linux repeats them after four seconds.
func TestLostHandshakeMessages(t *testing.T) {
	const slow, repeated = 500 * time.Millisecond, 4200 * time.Millisecond
	for name, tt := range map[string]struct{ once, twice int }{ // one in so many was lost
		"all are lost once":                        {once: 1},
		"some are lost twice":                      {once: 1, twice: 10},
		"some are lost twice, most are lost never": {once: 10, twice: 20},
		"none is lost":                             {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l listenQueue
				var count atomic.Int64
				l.init(t.Context(), 1000, func(ctx context.Context, _ *rdmacm.Request, h *handshake) (*Conn, error) {
					l.asked(h)
					took, i := slow, int(count.Add(1))
					switch {
					case tt.twice > 0 && i%tt.twice == 0:
						took += 2 * repeated
					case tt.once > 0 && i%tt.once == 0:
						took += repeated
					}
					select {
					case <-time.After(took):
						return new(Conn), nil
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				})
				const peers = 200
				for range peers {
					l.enter(new(rdmacm.Request))
				}
				time.Sleep(time.Minute)
				assert.Len(t, l.ready, peers, "handshakes were ended")
				l.timer.Stop()
			})
		})
	}
}
