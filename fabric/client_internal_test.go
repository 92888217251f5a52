// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// local asks for the local node.
func local(c *Client) (NodeInfo, error) { return c.NodeInfo(context.Background(), Address{}) }

// right returns the right answer to a request: a node with a GUID.
func right(p *packet) *packet {
	var a attribute
	a.setField(96, 64, 0xabc)
	return response(p, 0, a[:smpSize])
}

func TestAnswer(t *testing.T) {
	c, _ := newFake(t, Config{}, func(p *packet) []*packet { return []*packet{right(p)} })
	info, err := local(c)
	require.NoError(t, err)
	require.Equal(t, NodeInfo{GUID: 0xabc}, info)
}

// What does not answer the request is of no effect, whatever it says.
func TestForgedAnswers(t *testing.T) {
	forge := func(change func(*packet)) func(*packet) *packet {
		return func(p *packet) *packet {
			var a attribute
			a.setField(96, 64, 0xbad)
			answer := response(p, 0, a[:smpSize])
			change(answer)
			return answer
		}
	}
	for name, forged := range map[string]func(*packet) *packet{
		"another transaction": forge(func(p *packet) { p.mad[offTID+7]++ }),
		"another class":       forge(func(p *packet) { p.mad[offClass] = classLIDRouted }),
		"another attribute":   forge(func(p *packet) { p.mad[offAttribute+1]++ }),
		"a request":           forge(func(p *packet) { p.mad[offMethod] = methodGet }),
		"another method":      forge(func(p *packet) { p.mad[offMethod] = 0x92 }),
		"short":               forge(func(p *packet) { p.short = true }),
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newFake(t, Config{}, func(p *packet) []*packet { return []*packet{forged(p), right(p), forged(p), right(p)} })
			for range 3 {
				info, err := local(c)
				require.NoError(t, err)
				require.Equal(t, GUID(0xabc), info.GUID)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	for _, tt := range []struct {
		retries, lost int
		busy          bool
		want          string
	}{
		{retries: -1, lost: 0},
		{retries: -1, lost: 1, want: "NodeInfo (0): no answer (requests sent: 1, timeout 1ms)"},
		{retries: 0, lost: DefaultRetries},
		{retries: 0, lost: DefaultRetries + 1, want: "NodeInfo (0): no answer (requests sent: 3, timeout 1ms)"},
		{retries: 5, lost: 5},
		{retries: 1, lost: 1, busy: true},
		{retries: 1, lost: 2, busy: true, want: "NodeInfo (0): the node is busy (status 0x01) (requests sent: 2, timeout 1ms)"},
	} {
		var lost atomic.Int64
		c, f := newFake(t, Config{Retries: tt.retries, Timeout: time.Millisecond}, func(p *packet) []*packet {
			switch {
			case lost.Add(1) > int64(tt.lost):
				return []*packet{right(p)}
			case tt.busy:
				return []*packet{response(p, StatusBusy, nil)}
			}
			return []*packet{unanswered(p)}
		})
		_, err := local(c)
		if tt.want == "" {
			require.NoError(t, err)
			require.Equal(t, tt.lost+1, f.sent)
			continue
		}
		require.EqualError(t, err, tt.want)
		require.Equal(t, !tt.busy, errors.Is(err, ErrNoAnswer))
		require.Equal(t, tt.busy, errors.Is(err, StatusBusy))
	}
}

// A busy node gets time before it is asked again. The context and Close end the
// wait.
func TestBusyNodeGetsTime(t *testing.T) {
	const timeout = time.Hour
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Time
		c, _ := newFake(t, Config{Timeout: timeout, Retries: 3}, func(p *packet) []*packet {
			if asked = append(asked, time.Now()); len(asked)%4 == 0 {
				return []*packet{right(p)}
			}
			return []*packet{response(p, StatusBusy, nil)}
		})
		_, err := local(c)
		require.NoError(t, err)
		require.Len(t, asked, 4)
		for i, at := range asked[1:] {
			require.GreaterOrEqual(t, at.Sub(asked[i]), timeout)
		}

		ctx, cancel := context.WithTimeout(t.Context(), timeout/2)
		defer cancel()
		_, err = c.NodeInfo(ctx, Address{})
		require.ErrorIs(t, err, context.DeadlineExceeded)

		ended := make(chan error)
		go func() {
			_, err := local(c)
			ended <- err
		}()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-ended, os.ErrClosed)
		require.Less(t, time.Since(start), timeout)
	})
}

// A kernel that reports nothing does not hold a request up for good.
func TestSilence(t *testing.T) {
	c, _ := newFake(t, Config{Timeout: minTimeout, Retries: -1}, func(*packet) []*packet { return nil })
	_, err := local(c)
	require.ErrorIs(t, err, ErrNoAnswer)
}

func TestStatus(t *testing.T) {
	c, f := newFake(t, Config{}, func(p *packet) []*packet { return []*packet{response(p, StatusInvalidValue|0x4000, nil)} })
	_, err := c.PortInfo(t.Context(), Address{}, 7)
	require.EqualError(t, err, "PortInfo (0, port 7): a value in the request is invalid, such as the number of the port (status 0x401c)")
	require.ErrorIs(t, err, StatusInvalidValue)
	require.NotErrorIs(t, err, StatusUnsupported)
	require.Equal(t, 1, f.sent, "asking again is of no use")
	_, err = c.Performance(t.Context(), 5)
	require.EqualError(t, err, "ClassPortInfo (LID 5): a value in the request is invalid, such as the number of the port (status 0x401c)")
	require.Equal(t, "the node answered with an error (status 0x10)", Status(0x10).Error())
}

func TestContextEndsWaits(t *testing.T) {
	c, f := newFake(t, Config{InFlight: 1, Timeout: time.Hour}, func(*packet) []*packet { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 2 { // one is sent, the other waits for its turn
		go func() {
			_, err := c.NodeInfo(ctx, Address{})
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.sent == 1 }, time.Minute, time.Millisecond)
	cancel()
	for range 2 {
		err := <-ended
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "NodeInfo (0): context canceled")
	}
	_, err := c.NodeInfo(ctx, Address{})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, f.sent)
}

func TestCloseEndsWaits(t *testing.T) {
	c, f := newFake(t, Config{Timeout: time.Hour}, func(*packet) []*packet { return nil })
	ended := make(chan error)
	for range 20 { // more than may be in flight
		go func() {
			_, err := local(c)
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.sent == DefaultInFlight }, time.Minute, time.Millisecond)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	for range 20 {
		require.ErrorIs(t, <-ended, os.ErrClosed)
	}
	group.Wait()
	require.True(t, f.closed)
	_, err := local(c)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = c.Discover(t.Context())
	require.ErrorIs(t, err, os.ErrClosed)
}

// However many goroutines ask, so many requests are in flight, and each gets
// its own answer.
func TestManyGoroutines(t *testing.T) {
	c, f := newFake(t, Config{InFlight: 5}, func(p *packet) []*packet {
		var a attribute
		a.setField(256, 32, uint64(p.mad[offPath+1]))
		return []*packet{response(p, 0, a[:smpSize])}
	})
	var group sync.WaitGroup
	for port := 1; port <= 200; port++ {
		group.Go(func() {
			route, err := RouteThrough(port)
			if err != nil {
				t.Error(err)
				return
			}
			info, err := c.NodeInfo(t.Context(), AtRoute(route))
			if err != nil || info.Revision != uint32(port) {
				t.Errorf("port %d: %+v, %v", port, info, err)
			}
		})
	}
	group.Wait()
	require.Equal(t, 200, f.sent)
	require.LessOrEqual(t, f.most, 5)
}

func TestSendFails(t *testing.T) {
	c, f := newFake(t, Config{}, nil)
	f.sendError = syscall.EIO
	_, err := local(c)
	require.EqualError(t, err, "NodeInfo (0): input/output error")
	require.ErrorIs(t, err, syscall.EIO)
	_, err = c.Discover(t.Context())
	require.ErrorIs(t, err, syscall.EIO)
}

func TestRefused(t *testing.T) {
	c, f := newFake(t, Config{}, nil)
	ctx := t.Context()
	for _, tt := range []struct {
		err  func() error
		want string
	}{
		{func() error { _, err := c.PortInfo(ctx, AtLID(3), 255); return err }, "PortInfo (LID 3): port is 255, want 0 to 254"},
		{func() error { _, err := c.PortInfo(ctx, Address{}, -1); return err }, "PortInfo (0): port is -1, want 0 to 254"},
		{func() error { _, err := c.Counters(ctx, 0, 1); return err }, "ClassPortInfo (0): LID 0 is not one that a port can have, which are 1 to 49151"},
		{func() error { _, err := c.Performance(ctx, 0xc000); return err }, "ClassPortInfo (LID 49152): LID 49152 is not one that a port can have, which are 1 to 49151"},
	} {
		err := tt.err()
		require.EqualError(t, err, tt.want)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, call := range []func(ctx context.Context) error{
		func(ctx context.Context) error { _, err := c.Discover(ctx); return err },
		func(ctx context.Context) error { _, err := c.NodeInfo(ctx, Address{}); return err },
		func(ctx context.Context) error { _, err := c.Counters(ctx, 3, 1); return err },
		func(ctx context.Context) error { return c.ResetCounters(ctx, 3, 1) },
	} {
		err := call(nil)
		require.ErrorContains(t, err, "ctx is nil")
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Zero(t, f.sent)

	var none *Client
	_, err := none.NodeInfo(ctx, Address{})
	require.ErrorContains(t, err, "the client is nil")
	require.ErrorIs(t, none.Close(), os.ErrInvalid)
	require.ErrorIs(t, new(Client).Close(), os.ErrInvalid)
	_, err = new(Client).NodeInfo(ctx, Address{})
	require.ErrorIs(t, err, os.ErrInvalid)
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		config Config
		want   string
	}{
		{Config{Port: -1}, "fabric.Open (fabric at port -1): port is -1, want 0 to 254"},
		{Config{Device: "mlx5_0\x00x"}, "fabric.Open (mlx5_0\x00x): the name of the device contains a zero byte"},
		{Config{Device: "mlx5_0", Port: 255}, "fabric.Open (mlx5_0 port 255): port is 255, want 0 to 254"},
		{Config{Device: "mlx5_0", Timeout: -1}, "fabric.Open (mlx5_0): timeout is -1ns, want 1ms to 1h0m0s"},
		{Config{Timeout: 2 * time.Hour}, "fabric.Open (fabric): timeout is 2h0m0s, want 1ms to 1h0m0s"},
		{Config{InFlight: -1}, "fabric.Open (fabric): requests in flight are -1, want 0 to 1024"},
		{Config{InFlight: 1025}, "fabric.Open (fabric): requests in flight are 1025, want 0 to 1024"},
	} {
		_, err := Open(tt.config)
		require.EqualError(t, err, tt.want)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}
