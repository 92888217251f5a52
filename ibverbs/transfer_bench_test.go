// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cloops"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

const (
	messageSize   = 64
	writeSize     = 64 << 10
	loudEvery     = 16 // sends of which one gives a completion
	listLen       = 4  // writes in a list
	listsUnderWay = 4  // lists under way
)

// inTurn runs the same rounds in Go and in C, in turn and in pairs. It reports
// the median of the pairs' ratios, and of each one's time for a round.
func inTurn(b *testing.B, rounds int, inGo func(rounds int) error, inC func(rounds int) time.Duration) (goTime, cTime time.Duration) {
	b.Helper()
	b.ReportAllocs()
	require.NoError(b, inGo(rounds)) // the first posts allocate
	for b.Loop() {
		if err := inGo(rounds); err != nil {
			b.Fatal(err)
		}
	}
	const pairs = 41
	var goTimes, cTimes, ratios []float64
	for range pairs {
		begin := time.Now()
		if err := inGo(rounds); err != nil {
			b.Fatal(err)
		}
		took := time.Since(begin)
		inCTook := inC(rounds)
		require.Positive(b, inCTook, "the loop in C failed")
		goTimes = append(goTimes, float64(took)/float64(rounds))
		cTimes = append(cTimes, float64(inCTook)/float64(rounds))
		ratios = append(ratios, float64(took)/float64(inCTook))
	}
	b.ReportMetric(median(goTimes)/1000, "Go-us")
	b.ReportMetric(median(cTimes)/1000, "C-us")
	b.ReportMetric(median(ratios), "x-C")
	return time.Duration(median(goTimes)), time.Duration(median(cTimes))
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// speaker is an end that sends messages and has receives posted.
type speaker struct {
	*end
	channel     *ibverbs.CompChannel
	quiet, loud *ibverbs.SendBatch
	wcs         []ibverbs.WC
}

func speakers(b *testing.B) (a, z *speaker) {
	b.Helper()
	r := open(b)
	ch := [2]*ibverbs.CompChannel{r.channel(), r.channel()} // one each, so that an event has one meaning
	var s [2]*speaker
	for i := range s {
		e := r.end(ch[i])
		s[i] = &speaker{end: e, channel: ch[i], wcs: make([]ibverbs.WC, 1)}
		for flags, batch := range map[ibverbs.SendFlags]**ibverbs.SendBatch{0: &s[i].quiet, ibverbs.SendSignaled: &s[i].loud} {
			*batch = must(ibverbs.NewSendBatch(1, 1))(b)
			require.NoError(b, (*batch).Send(1, flags|ibverbs.SendInline, e.mr.Sub(0, messageSize)))
		}
		e.recv = must(ibverbs.NewRecvBatch(1, 1))(b)
		require.NoError(b, e.recv.Recv(2, e.mr.Sub(1024, messageSize)))
	}
	for i := range s {
		r.connect(s[i].end, linkTo(s[1-i].qp))
		_ = must(s[i].qp.PostRecv(s[i].recv))(b)
	}
	return s[0], s[1]
}

func (s *speaker) inC() *cloops.End {
	return &cloops.End{
		QP: s.qp.Raw(), SendCQ: s.sendCQ.Raw(), RecvCQ: s.recvCQ.Raw(), Channel: ibverbs.RawChannel(s.channel),
		Quiet: ibverbs.FirstRequest(s.quiet), Loud: ibverbs.FirstRequest(s.loud), Recv: ibverbs.FirstReceive(s.recv),
	}
}

// spin returns when the queue has given a completion.
func (s *speaker) spin(cq *ibverbs.CQ) error {
	for {
		n, err := cq.Spin(s.wcs, ibverbs.MaxSpin)
		if err != nil {
			return err
		}
		if n > 0 {
			return s.wcs[0].Err()
		}
	}
}

// say sends a message that to receives.
func (s *speaker) say(to *speaker, loud bool, send func(s, to *speaker, batch *ibverbs.SendBatch) error) error {
	batch := s.quiet
	if loud {
		batch = s.loud
	}
	if err := send(s, to, batch); err != nil {
		return err
	}
	if _, err := to.qp.PostRecv(to.recv); err != nil {
		return err
	}
	if loud {
		return s.spin(s.sendCQ)
	}
	return nil
}

func sendAndSpin(s, to *speaker, batch *ibverbs.SendBatch) error {
	_, n, err := s.qp.PostSendAndSpin(batch, to.recvCQ, s.wcs, ibverbs.MaxSpin)
	switch {
	case err != nil:
		return err
	case n == 0:
		return s.spin(to.recvCQ)
	}
	return s.wcs[0].Err()
}

func sendAndSleep(s, to *speaker, batch *ibverbs.SendBatch) error {
	if _, err := s.qp.PostSend(batch); err != nil {
		return err
	}
	for {
		n, err := to.recvCQ.Sleep(s.wcs, ibverbs.MaxSpin)
		switch {
		case err != nil:
			return err
		case n > 0:
			return s.wcs[0].Err()
		}
	}
}

func sendAndWait(ctx context.Context) func(s, to *speaker, batch *ibverbs.SendBatch) error {
	return func(s, to *speaker, batch *ibverbs.SendBatch) error {
		if _, err := s.qp.PostSend(batch); err != nil {
			return err
		}
		if _, err := to.recvCQ.Wait(ctx, s.wcs); err != nil {
			return err
		}
		return s.wcs[0].Err()
	}
}

// A round is a message of 64 bytes there and one back.
func BenchmarkSendLatency(b *testing.B) {
	for _, how := range []string{"spin", "sleep", "wait"} {
		b.Run(how, func(b *testing.B) {
			x, y := speakers(b)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			send := map[string]func(s, to *speaker, batch *ibverbs.SendBatch) error{
				"spin": sendAndSpin, "sleep": sendAndSleep, "wait": sendAndWait(ctx),
			}[how]
			inGo := func(rounds int) error {
				for i := range rounds {
					loud := i%loudEvery == loudEvery-1
					if err := x.say(y, loud, send); err != nil {
						return err
					}
					if err := y.say(x, loud, send); err != nil {
						return err
					}
				}
				return nil
			}
			inTurn(b, 64, inGo, func(rounds int) time.Duration { return cloops.PingPong(x.inC(), y.inC(), how != "spin", rounds) })
		})
	}
}

// writer writes lists of requests and waits for their completions.
type writer struct {
	*speaker
	list     *ibverbs.SendBatch
	from, to *ibverbs.MR
}

func newWriter(b *testing.B, size int) writer {
	b.Helper()
	r := open(b)
	x, _ := r.pair(nil)
	w := writer{&speaker{end: x, wcs: make([]ibverbs.WC, 1)}, must(ibverbs.NewSendBatch(listLen, 1))(b), r.alloc(size, anyAccess), r.alloc(size, anyAccess)}
	pattern(w.from.Bytes(), 1)
	for i := range listLen {
		var flags ibverbs.SendFlags
		if i == listLen-1 {
			flags = ibverbs.SendSignaled
		}
		require.NoError(b, w.list.Write(uint64(i), w.to.Remote(), flags, w.from.All()))
	}
	return w
}

func (w writer) write(rounds int) error {
	underWay := 0
	for range rounds {
		if underWay == listsUnderWay {
			if err := w.spin(w.sendCQ); err != nil {
				return err
			}
			underWay--
		}
		if _, err := w.qp.PostSend(w.list); err != nil {
			return err
		}
		underWay++
	}
	for range underWay {
		if err := w.spin(w.sendCQ); err != nil {
			return err
		}
	}
	return nil
}

const listMiB = listLen * writeSize / float64(1<<20)

// A round is a list of RDMA writes of 64 KiB each, of which the last gives a
// completion.
func BenchmarkWriteBandwidth(b *testing.B) {
	w := newWriter(b, writeSize)
	g, c := inTurn(b, 32, w.write, func(rounds int) time.Duration {
		return cloops.Stream(w.qp.Raw(), w.sendCQ.Raw(), ibverbs.FirstRequest(w.list), listsUnderWay, rounds)
	})
	b.ReportMetric(listMiB/g.Seconds(), "Go-MiB/s")
	b.ReportMetric(listMiB/c.Seconds(), "C-MiB/s")
	require.Equal(b, w.from.Bytes(), w.to.Bytes())
}

// tcpPair returns the two ends of a connection over the loopback interface.
func tcpPair(b *testing.B) (x, y net.Conn) {
	b.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(b)
	defer listener.Close()
	x = must(net.Dial("tcp", listener.Addr().String()))(b)
	y = must(listener.Accept())(b)
	b.Cleanup(func() {
		require.NoError(b, x.Close())
		require.NoError(b, y.Close())
	})
	return x, y
}

// bothEnds runs the two ends of a conversation, each in a goroutine.
func bothEnds(x, y func(rounds int) error) func(rounds int) error {
	return func(rounds int) error {
		other := make(chan error, 1)
		go func() { other <- y(rounds) }()
		return errors.Join(x(rounds), <-other)
	}
}

// asks sends so many messages, and receives an answer to each.
func (s *speaker) asks(send func(s, to *speaker, batch *ibverbs.SendBatch) error) func(rounds int) error {
	return func(rounds int) error {
		for i := range rounds {
			if err := s.say(s, i%loudEvery == loudEvery-1, send); err != nil {
				return err
			}
		}
		return nil
	}
}

// answers receives so many messages, and answers each.
func (s *speaker) answers(receive func(s *speaker) error) func(rounds int) error {
	return func(rounds int) error {
		for i := range rounds {
			if err := receive(s); err != nil {
				return err
			}
			if _, err := s.qp.PostRecv(s.recv); err != nil {
				return err
			}
			batch, loud := s.quiet, i%loudEvery == loudEvery-1
			if loud {
				batch = s.loud
			}
			if _, err := s.qp.PostSend(batch); err != nil {
				return err
			}
			if !loud {
				continue
			}
			if err := s.spin(s.sendCQ); err != nil {
				return err
			}
		}
		return nil
	}
}

// BenchmarkBesideTCP does the same over TCP as over queue pairs of the same
// process, in turn, and prints medians as rows of a Markdown table: TCP's,
// ours, and the smallest, the median and the largest ratio.
func BenchmarkBesideTCP(b *testing.B) {
	chunk := make([]byte, listLen*writeSize)
	tcpTalk := func(b *testing.B) func(rounds int) error {
		x, y := tcpPair(b)
		end := func(c net.Conn, asks bool) func(rounds int) error {
			message := make([]byte, messageSize)
			return func(rounds int) error {
				for i := range 2 * rounds {
					if (i%2 == 0) == asks {
						if _, err := c.Write(message); err != nil {
							return err
						}
					} else if _, err := io.ReadFull(c, message); err != nil {
						return err
					}
				}
				return nil
			}
		}
		return bothEnds(end(x, true), end(y, false))
	}
	tcpWrite := func(b *testing.B) func(rounds int) error {
		x, y := tcpPair(b)
		return func(rounds int) error {
			read := make(chan error, 1)
			go func() {
				_, err := io.CopyN(io.Discard, y, int64(rounds)*int64(len(chunk)))
				read <- err
			}()
			for range rounds {
				if _, err := x.Write(chunk); err != nil {
					return err
				}
			}
			return <-read
		}
	}
	for _, tt := range []struct {
		name      string
		bandwidth bool
		tcp, ours func(b *testing.B) func(rounds int) error
	}{
		{"one process, send there and back, polling | 64", false, tcpTalk, func(b *testing.B) func(int) error {
			x, y := speakers(b)
			return bothEnds(x.asks(sendAndSpin), y.answers(func(s *speaker) error { return s.spin(s.recvCQ) }))
		}},
		{"one process, send there and back, events | 64", false, tcpTalk, func(b *testing.B) func(int) error {
			x, y := speakers(b)
			return bothEnds(x.asks(sendAndWait(b.Context())), y.answers(func(s *speaker) error {
				_, err := s.recvCQ.Wait(b.Context(), s.wcs)
				return errors.Join(err, s.wcs[0].Err())
			}))
		}},
		{"one process, write bandwidth, polling | 65536", true, tcpWrite, func(b *testing.B) func(int) error {
			return newWriter(b, writeSize).write
		}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			const pairs, rounds = 41, 64
			tcp, ours := tt.tcp(b), tt.ours(b)
			measure := func(do func(int) error) float64 {
				began := time.Now()
				require.NoError(b, do(rounds))
				took := time.Since(began).Seconds() / rounds
				if tt.bandwidth {
					return listMiB / took
				}
				return took * 1e6
			}
			var tcps, all, ratios []float64
			for b.Loop() {
				measure(tcp)
				measure(ours)
				for range pairs {
					t, o := measure(tcp), measure(ours)
					tcps, all, ratios = append(tcps, t), append(all, o), append(ratios, o/t)
				}
			}
			unit := map[bool]string{true: "MiB/s", false: "us"}[tt.bandwidth]
			fmt.Printf("\n| %s, %s | %.1f %s | %.1f %s | %.2f, %.2f, %.2f |\n",
				testdevice.Require(b).Name, tt.name, median(tcps), unit, median(all), unit, slices.Min(ratios), median(ratios), slices.Max(ratios))
		})
	}
}

// BenchmarkTwoConnections writes over one connection within the process, and
// over two at the same time, whose ends have nothing in common, in turn. It
// prints medians as rows of a Markdown table: the bandwidth of one, that of
// both together, and the smallest, the median and the largest ratio.
func BenchmarkTwoConnections(b *testing.B) {
	for _, size := range []int{writeSize, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			const pairs, rounds = 41, 64
			first, second := newWriter(b, size), newWriter(b, size)
			measure := func(connections float64, do func(int) error) float64 {
				began := time.Now()
				require.NoError(b, do(rounds))
				return connections * float64(rounds*listLen*size) / (1 << 20) / time.Since(began).Seconds()
			}
			both := bothEnds(first.write, second.write)
			var alone, together, ratios []float64
			for b.Loop() {
				measure(1, first.write)
				measure(2, both)
				for range pairs {
					one, two := measure(1, first.write), measure(2, both)
					alone, together, ratios = append(alone, one), append(together, two), append(ratios, two/one)
				}
			}
			fmt.Printf("\n| %s, two connections in one process, write bandwidth, polling | %d | %.0f MiB/s | %.0f MiB/s | %.2f, %.2f, %.2f |\n",
				testdevice.Require(b).Name, size, median(alone), median(together), slices.Min(ratios), median(ratios), slices.Max(ratios))
			require.Equal(b, first.from.Bytes(), first.to.Bytes())
			require.Equal(b, second.from.Bytes(), second.to.Bytes())
		})
	}
}
