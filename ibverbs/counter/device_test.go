// SPDX-License-Identifier: Apache-2.0

package counter_test

import (
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{"writer": runWriter})
	os.Exit(testdevice.Main(m, "Example", "ExampleQueryCaps"))
}

// patience is how long anything that must happen may take.
const patience = time.Minute

// rig is a device with counters, and memory.
type rig struct {
	t      testing.TB
	device *ibverbs.Device
	pd     *ibverbs.PD
	mr     *ibverbs.MR
}

const depth = 16

func open(t testing.TB) *rig {
	t.Helper()
	found := testdevice.Require(t)
	testdevice.NoLeaks(t)
	found.Have(t, testdevice.Counters)
	r := &rig{t: t, device: must(ibverbs.Open(found.Name))(t)}
	r.cleanup(r.device)
	r.pd = must(r.device.AllocPD())(t)
	r.cleanup(r.pd)
	r.mr = must(r.pd.Alloc(1<<16, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead))(t)
	r.cleanup(r.mr)
	return r
}

func (r *rig) cleanup(c io.Closer) { r.t.Cleanup(func() { require.NoError(r.t, c.Close()) }) }

// counter makes a counter that is closed before the device.
func (r *rig) counter(unit counter.Unit) *counter.Counter {
	r.t.Helper()
	c := must(counter.Create(r.device, unit))(r.t)
	r.cleanup(c)
	return c
}

// qp makes a queue pair that is not connected, and its completion queue.
func (r *rig) qp() (*ibverbs.QP, *ibverbs.CQ) {
	r.t.Helper()
	cq := must(r.device.CreateCQ(ibverbs.CQConfig{CompQueue: 2 * depth}))(r.t)
	r.cleanup(cq)
	qp := must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: depth, RecvQueue: depth}))(r.t)
	r.cleanup(qp)
	return qp, cq
}

// connect connects two queue pairs of this process.
func connect(t testing.TB, a, b *ibverbs.QP) {
	t.Helper()
	from, to := must(a.Addr(ibverbs.QPAddrConfig{}))(t), must(b.Addr(ibverbs.QPAddrConfig{}))(t)
	require.NoError(t, a.ConnectTo(from, to, ibverbs.ConnectConfig{}))
	require.NoError(t, b.ConnectTo(to, from, ibverbs.ConnectConfig{}))
}

// collect waits for n completions.
func collect(t testing.TB, cq *ibverbs.CQ, n int) {
	t.Helper()
	wcs := make([]ibverbs.WC, n)
	for end := time.Now().Add(patience); n > 0; {
		k := must(cq.Poll(wcs[:n]))(t)
		n -= k
		require.False(t, k == 0 && time.Now().After(end), "%d completions are missing", n)
	}
}

// reaches waits until read returns want.
func reaches(t testing.TB, want uint64, read func() (uint64, error)) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		got := must(read())(t)
		if got == want {
			return
		}
		require.LessOrEqual(t, got, want)
		require.False(t, time.Now().After(end), "the counter stays at %d, below %d", got, want)
		time.Sleep(100 * time.Microsecond)
	}
}

// Counters of both ends add up requests and bytes, also of requests that are
// not signaled and have no entry in a completion queue.
func TestCount(t *testing.T) {
	r := open(t)
	requests, bytes, remote := r.counter(counter.Requests), r.counter(counter.Bytes), r.counter(counter.Bytes)
	a, sends := r.qp()
	b, recvs := r.qp()
	for _, c := range []struct {
		qp      *ibverbs.QP
		counter *counter.Counter
		ops     counter.Ops
	}{
		{a, requests, counter.Sends | counter.Writes},
		{a, bytes, counter.Reads},
		{b, requests, counter.Recvs},
		{b, remote, counter.RemoteReads | counter.RemoteWrites},
	} {
		require.NoError(t, c.counter.Attach(c.qp, c.ops))
	}
	require.ErrorIs(t, bytes.Attach(a, counter.Writes), syscall.EBUSY)
	connect(t, a, b)
	require.ErrorIs(t, bytes.Attach(a, counter.RemoteReads), syscall.EINVAL, "the queue pair is connected")

	const rounds, size = 100, 1000
	send, recv := must(ibverbs.NewSendBatch(3, 1))(t), must(ibverbs.NewRecvBatch(1, 1))(t)
	require.NoError(t, recv.Recv(1, r.mr.Sub(0, size)))
	require.NoError(t, send.Write(1, r.mr.Remote(), 0, r.mr.Sub(4096, size)))
	require.NoError(t, send.Read(2, r.mr.Remote().Sub(0, size), 0, r.mr.Sub(8192, size)))
	require.NoError(t, send.Send(3, ibverbs.SendSignaled, r.mr.Sub(4096, size)))
	for range rounds {
		must(b.PostRecv(recv))(t)
		must(a.PostSend(send))(t)
		collect(t, sends, 1)
		collect(t, recvs, 1)
	}
	reaches(t, 3*rounds, requests.Read)
	reaches(t, rounds*size, bytes.Read)
	reaches(t, 2*rounds*size, remote.Read)
	for _, c := range []*counter.Counter{requests, bytes, remote} {
		require.Zero(t, must(c.ReadErrors())(t))
		var busy *ibverbs.BusyError
		require.ErrorAs(t, c.Close(), &busy)
	}
}

// Failed requests are counted apart, and those that a queue pair in the error
// state flushes are among them.
func TestCountErrors(t *testing.T) {
	r := open(t)
	own, peers := r.counter(counter.Bytes), r.counter(counter.Requests)
	a, sends := r.qp()
	b, _ := r.qp()
	require.NoError(t, own.Attach(a, counter.Writes|counter.Recvs))
	require.NoError(t, peers.Attach(b, counter.RemoteWrites))
	connect(t, a, b)
	recv := must(ibverbs.NewRecvBatch(1, 1))(t)
	require.NoError(t, recv.Recv(1, r.mr.Sub(0, 8)))
	must(a.PostRecv(recv))(t)
	wrong := r.mr.Remote()
	wrong.RKey++
	send := must(ibverbs.NewSendBatch(2, 1))(t)
	require.NoError(t, send.Write(1, wrong, 0, r.mr.Sub(0, 8)))
	require.NoError(t, send.Write(2, r.mr.Remote(), 0, r.mr.Sub(0, 8)))
	must(a.PostSend(send))(t)
	collect(t, sends, 3)
	reaches(t, 3, own.ReadErrors)
	reaches(t, 1, peers.ReadErrors)
	require.Zero(t, must(own.Read())(t))
	require.Zero(t, must(peers.Read())(t))
}

// A program may set both numbers, and add to them; the largest is followed by
// 0.
func TestSet(t *testing.T) {
	r := open(t)
	caps := must(counter.QueryCaps(r.device))(t)
	if testdevice.Soft() {
		const all = counter.Sends | counter.Recvs | counter.Reads | counter.Writes | counter.RemoteReads | counter.RemoteWrites
		require.Equal(t, all, caps.Ops)
		require.EqualValues(t, uint64(math.MaxUint64), caps.MaxValue)
	}
	require.Positive(t, caps.MaxCounters)
	c := r.counter(counter.Requests)
	require.NoError(t, c.Set(caps.MaxValue))
	require.NoError(t, c.SetErrors(5))
	require.NoError(t, c.Add(2))
	require.NoError(t, c.AddErrors(6))
	require.EqualValues(t, 1, must(c.Read())(t))
	require.EqualValues(t, 11, must(c.ReadErrors())(t))
	_, err := counter.Create(r.device, counter.Unit(7))
	require.ErrorIs(t, err, syscall.EINVAL)
}

// One counter of many queue pairs that work at the same time loses nothing,
// while goroutines read it and queue pairs come and go.
func TestManyCount(t *testing.T) {
	const pairs, each = 8, 200
	r := open(t)
	c, remote := r.counter(counter.Requests), r.counter(counter.Requests)
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	failed := make(chan error, 16)
	for range 3 {
		readers.Go(func() {
			for last := uint64(0); ; {
				select {
				case <-done:
					return
				default:
				}
				n, err := c.Read()
				if err == nil && n < last {
					err = fmt.Errorf("the counter went from %d to %d", last, n)
				}
				if err != nil {
					failed <- err
					return
				}
				last = n
			}
		})
	}
	for range pairs {
		writers.Go(func() {
			if err := r.write(c, remote, each); err != nil {
				failed <- err
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	select {
	case err := <-failed:
		require.NoError(t, err)
	default:
	}
	reaches(t, pairs*each, c.Read)
	reaches(t, pairs*each, remote.Read)
}

// write writes n times with queue pairs of its own, which it closes.
func (r *rig) write(local, remote *counter.Counter, n int) error {
	cq, err := r.device.CreateCQ(ibverbs.CQConfig{CompQueue: depth})
	if err != nil {
		return err
	}
	defer cq.Close()
	var qps [2]*ibverbs.QP
	var addrs [2]ibverbs.QPAddr
	for i := range qps {
		if qps[i], err = r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: depth, RecvQueue: 1}); err != nil {
			return err
		}
		defer qps[i].Close()
		if addrs[i], err = qps[i].Addr(ibverbs.QPAddrConfig{}); err != nil {
			return err
		}
	}
	if err := local.Attach(qps[0], counter.Writes); err != nil {
		return err
	}
	if err := remote.Attach(qps[1], counter.RemoteWrites); err != nil {
		return err
	}
	for i := range qps {
		if err := qps[i].ConnectTo(addrs[i], addrs[1-i], ibverbs.ConnectConfig{}); err != nil {
			return err
		}
	}
	return writeAll(qps[0], cq, r.mr.Sub(0, 8), r.mr.Remote().Sub(64, 8), n)
}

// writeAll writes n times, and waits for all.
func writeAll(qp *ibverbs.QP, cq *ibverbs.CQ, from ibverbs.Segment, to ibverbs.RemoteBuffer, n int) error {
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		return err
	}
	if err := batch.Write(1, to, ibverbs.SendSignaled, from); err != nil {
		return err
	}
	wcs := make([]ibverbs.WC, depth)
	for posted, completed := 0, 0; completed < n; {
		for ; posted < n && posted-completed < depth; posted++ {
			if _, err := qp.PostSend(batch); err != nil {
				return err
			}
		}
		k, err := cq.Poll(wcs)
		if err != nil {
			return err
		}
		for i := range wcs[:k] {
			if err := wcs[i].Err(); err != nil {
				return err
			}
		}
		completed += k
	}
	return nil
}

const messages, messageSize = 100, 100

// The data that a peer in another process has written is there when the counter
// says so, and the peer needs not live on.
func TestCountOfAnotherProcess(t *testing.T) {
	r := open(t)
	c := r.counter(counter.Bytes)
	qp, _ := r.qp()
	require.NoError(t, c.Attach(qp, counter.RemoteWrites))
	local := must(qp.Addr(ibverbs.QPAddrConfig{}))(t)
	buffer := r.mr.Remote().Sub(0, messages*messageSize)
	cmd := process.Command(t, "writer", local.String(), fmt.Sprint(buffer.Addr), fmt.Sprint(buffer.RKey))
	p := process.Start(t, cmd)
	remote := must(ibverbs.ParseQPAddr(p.Line()))(t)
	require.NoError(t, qp.ConnectTo(local, remote, ibverbs.ConnectConfig{}))
	seen := 0
	for end := time.Now().Add(patience); seen < messages; {
		n := int(must(c.Read())(t)) / messageSize
		for ; seen < n; seen++ {
			last := r.mr.Bytes()[(seen+1)*messageSize-1]
			require.Equal(t, byte(seen+1), last, "message %d is counted before it is there", seen)
		}
		require.False(t, time.Now().After(end), "%d of %d messages were counted", seen, messages)
	}
	require.Zero(t, p.Wait())
	require.EqualValues(t, messages*messageSize, must(c.Read())(t))
}

// runWriter writes messages to a peer whose address and memory the arguments
// name.
func runWriter(args []string, stdout, stderr io.Writer) int {
	if err := writeTo(args, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func writeTo(args []string, stdout io.Writer) error {
	remote, err := ibverbs.ParseQPAddr(args[0])
	if err != nil {
		return err
	}
	buffer := ibverbs.RemoteBuffer{Len: messages * messageSize}
	if _, err := fmt.Sscan(args[1], &buffer.Addr); err != nil {
		return err
	}
	if _, err := fmt.Sscan(args[2], &buffer.RKey); err != nil {
		return err
	}
	device, err := ibverbs.Open("")
	if err != nil {
		return err
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	mr, err := pd.Alloc(messages*messageSize, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: depth})
	if err != nil {
		return err
	}
	defer cq.Close()
	qp, err := pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: depth, RecvQueue: 1})
	if err != nil {
		return err
	}
	defer qp.Close()
	local, err := qp.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		return err
	}
	// What is written before the peer is connected is repeated.
	if err := qp.ConnectTo(local, remote, ibverbs.ConnectConfig{Timeout: time.Second}); err != nil {
		return err
	}
	fmt.Fprintln(stdout, local)
	for i := range messages {
		b := mr.Bytes()[i*messageSize:][:messageSize]
		b[messageSize-1] = byte(i + 1)
		if err := writeAll(qp, cq, mr.Sub(i*messageSize, messageSize), buffer.Sub(uint64(i)*messageSize, messageSize), 1); err != nil {
			return err
		}
	}
	return nil
}

// must fails the test for an error and returns the value.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}
