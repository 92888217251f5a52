// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

var chaosTime = flag.Duration("chaos", 2*time.Second, "how long TestChaos goes on")

// Whatever happens to the device while programs make objects and connections,
// use and end them: what has arrived are the right bytes, nothing hangs,
// nothing is left, and afterwards all is well.
func TestChaos(t *testing.T) {
	_, err := ibverbs.Devices()
	require.NoError(t, err)
	wild(t, *chaosTime/2) // starts the threads that there will be
	testdevice.NoLeaks(t)
	wild(t, *chaosTime/2)
}

// wild lets chaos reign for a time.
func wild(t *testing.T, duration time.Duration) {
	before := len(ibverbs.OpenObjects())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var done [3]atomic.Int32
	for i := range 4 {
		for kind, work := range []func(context.Context, *rand.Rand) error{transferred, connected, datagrams} {
			running.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), uint64(kind)))
				for ctx.Err() == nil {
					bounded, cancel := context.WithTimeout(ctx, time.Second)
					err := work(bounded, random)
					cancel()
					if errors.Is(err, errWrong) {
						t.Error(err)
					}
					if err == nil {
						done[kind].Add(1)
					}
				}
			})
		}
	}
	random := rand.New(rand.NewPCG(9, 9))
	for end := time.Now().Add(duration); time.Now().Before(end); {
		chaos(random)
	}
	softroce.SetFaults(nil)
	cancel()
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		panic("this does not end") // and shows where it is
	}
	t.Logf("%d transfers, %d connections, %d datagrams succeeded", done[0].Load(), done[1].Load(), done[2].Load())
	for _, work := range []func(context.Context, *rand.Rand) error{transferred, connected, datagrams} {
		require.NoError(t, work(bounded(t), random))
	}
	// Servers end after their clients, and removed devices are given back when
	// the devices are next listed.
	few := func() bool { return len(ibverbs.OpenObjects()) <= before } // earlier tests' objects may be closed late
	assert.Eventually(t, few, patience, time.Millisecond)
	require.True(t, few(), "%q", ibverbs.OpenObjects())
	_, err := rdmacm.Devices()
	require.NoError(t, err)
}

// chaos does something to the device.
func chaos(random *rand.Rand) {
	time.Sleep(time.Duration(random.IntN(20000)) * time.Microsecond)
	pause := func() { time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond) }
	switch random.IntN(12) {
	case 0, 1:
		_ = softroce.Remove()
		pause()
		_ = softroce.Insert()
	case 2, 3:
		_ = softroce.SetPort(false)
		pause()
		_ = softroce.SetPort(true)
	case 4, 5, 6, 7:
		_ = softroce.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
		pause()
		_ = softroce.SetAddresses(nil)
	case 8, 9:
		softroce.SetFaults(func(softroce.Packet) softroce.Fault {
			return softroce.Fault{
				Drop: rand.IntN(20) == 0, Corrupt: rand.IntN(20) == 0, Duplicate: rand.IntN(3),
				Delay: time.Duration(rand.IntN(100)) * time.Microsecond,
			}
		})
	case 10:
		softroce.SetFaults(nil)
	default:
		if stop, err := softroce.Capture(io.Discard); err == nil {
			time.AfterFunc(time.Millisecond, func() { _ = stop() })
		}
	}
}

// errWrong reports bytes that were not sent.
var errWrong = errors.New("wrong bytes")

// closers closes what was made, the last first.
type closers []io.Closer

func (c *closers) add(o io.Closer) { *c = append(*c, o) }

func (c *closers) close(err *error) {
	for _, o := range slices.Backward(*c) {
		if e := o.Close(); e != nil {
			*err = errors.Join(*err, fmt.Errorf("%w: %T does not close: %w", errWrong, o, e))
		}
	}
}

// station has two queue pairs on a device of its own.
type station struct {
	device *ibverbs.Device
	pd     *ibverbs.PD
	mr     *ibverbs.MR
	cq     *ibverbs.CQ
	a, b   *ibverbs.QP
	random *rand.Rand
}

const stationMemory = 1 << 16

func newStation(kind ibverbs.QPType, random *rand.Rand, open *closers) (s *station, err error) {
	s = &station{random: random}
	if s.device, err = ibverbs.Open("soft0"); err != nil {
		return nil, err
	}
	open.add(s.device)
	if s.pd, err = s.device.AllocPD(); err != nil {
		return nil, err
	}
	open.add(s.pd)
	if s.mr, err = s.pd.Alloc(stationMemory, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead); err != nil {
		return nil, err
	}
	open.add(s.mr)
	channel, err := s.device.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	open.add(channel)
	if s.cq, err = s.device.CreateCQ(ibverbs.CQConfig{CompQueue: 64, Channel: channel}); err != nil {
		return nil, err
	}
	open.add(s.cq)
	for _, qp := range []**ibverbs.QP{&s.a, &s.b} {
		if *qp, err = s.pd.CreateQP(ibverbs.QPConfig{Type: kind, SendCQ: s.cq, RecvCQ: s.cq, SendQueue: 16, RecvQueue: 16}); err != nil {
			return nil, err
		}
		open.add(*qp)
	}
	return s, nil
}

// exchange posts a receive and a send and waits for both.
func (s *station) exchange(ctx context.Context, post func(b *ibverbs.SendBatch) error, completions int) error {
	recv, err := ibverbs.NewRecvBatch(1, 1)
	if err != nil {
		return err
	}
	send, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		return err
	}
	if err := errors.Join(recv.Recv(1, s.mr.Sub(0, stationMemory/2)), post(send)); err != nil {
		return err
	}
	if completions > 1 {
		if _, err := s.b.PostRecv(recv); err != nil {
			return err
		}
	}
	if _, err := s.a.PostSend(send); err != nil {
		return err
	}
	for range completions {
		wc, err := s.cq.WaitOne(ctx)
		if err != nil {
			return err
		}
		if err := wc.Err(); err != nil {
			return err
		}
	}
	return nil
}

// text fills the second half of the memory.
func (s *station) text(n int) []byte {
	return fill(byte(s.random.Uint32()), s.mr.Bytes()[stationMemory/2:][:n])
}

func fill(first byte, b []byte) []byte {
	for i := range b {
		b[i] = first + byte(i*7)
	}
	return b
}

// transferred sends messages over a reliable connection.
func transferred(ctx context.Context, random *rand.Rand) (err error) {
	var open closers
	defer open.close(&err)
	s, err := newStation(ibverbs.QPTypeRC, random, &open)
	if err != nil {
		return err
	}
	atA, err := s.a.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		return err
	}
	atB, err := s.b.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		return err
	}
	if err := errors.Join(s.a.ConnectTo(atA, atB, ibverbs.ConnectConfig{}), s.b.ConnectTo(atB, atA, ibverbs.ConnectConfig{})); err != nil {
		return err
	}
	for range random.IntN(20) {
		n := random.IntN(stationMemory / 2)
		text := s.text(n)
		out := s.mr.Sub(stationMemory/2, n)
		post := func(b *ibverbs.SendBatch) error { return b.Send(2, ibverbs.SendSignaled, out) }
		completions := 2
		if random.IntN(2) == 0 {
			post = func(b *ibverbs.SendBatch) error {
				return b.Write(2, s.mr.Remote().Sub(0, uint64(n)), ibverbs.SendSignaled, out)
			}
			completions = 1
		}
		if err := s.exchange(ctx, post, completions); err != nil {
			return err
		}
		if got := s.mr.Bytes()[:n]; !slices.Equal(text, got) {
			return fmt.Errorf("%w: %d", errWrong, n)
		}
	}
	return nil
}

// datagrams sends datagrams.
func datagrams(ctx context.Context, random *rand.Rand) (err error) {
	var open closers
	defer open.close(&err)
	s, err := newStation(ibverbs.QPTypeUD, random, &open)
	if err != nil {
		return err
	}
	var at ibverbs.QPAddr
	for _, qp := range []*ibverbs.QP{s.a, s.b} {
		if at, err = qp.Addr(ibverbs.QPAddrConfig{QKey: 7}); err != nil {
			return err
		}
		if err := qp.Activate(at, 0); err != nil {
			return err
		}
	}
	const size, grh = 1000, 40
	ah, err := s.pd.CreateAH(ibverbs.AHAttr{Port: at.Port, DGID: at.GID, SGIDIndex: at.GIDIndex})
	if err != nil {
		return err
	}
	defer ah.Close()
	for range random.IntN(20) {
		text := s.text(size)
		err := s.exchange(ctx, func(b *ibverbs.SendBatch) error {
			to := ibverbs.Destination{AH: ah, QPNum: s.b.Num(), QKey: 7}
			return b.SendTo(2, to, ibverbs.SendSignaled, s.mr.Sub(stationMemory/2, size))
		}, 2)
		if err != nil {
			return err
		}
		if got := s.mr.Bytes()[grh:][:size]; !slices.Equal(fill(got[0], text), got) { // it may be an earlier one that comes twice
			return fmt.Errorf("%w in a datagram", errWrong)
		}
	}
	return nil
}

// connected sends a message over a connection.
func connected(ctx context.Context, random *rand.Rand) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address, messages, err := server(ctx)
	if err != nil {
		return err
	}
	text := strings.Repeat(string(rune('a'+random.IntN(26))), 1+random.IntN(60))
	conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{AckTimeout: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	defer conn.Close()
	memory, err := conn.Alloc(64, 0)
	if err != nil {
		return err
	}
	if err := conn.Send(ctx, memory.Sub(0, copy(memory.Bytes(), text))); err != nil {
		return err
	}
	select {
	case got := <-messages:
		if got != text {
			return fmt.Errorf("%w: %q, not %q", errWrong, got, text)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return conn.Shutdown(ctx)
}
