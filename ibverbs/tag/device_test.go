// SPDX-License-Identifier: Apache-2.0

package tag_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

const (
	patience = time.Minute
	room     = 4096 // bytes of a receive
	tags     = 32   // receives in the tag list
)

func TestMain(m *testing.M) { os.Exit(testdevice.Main(m, "ExamplePost")) }

// rig is a queue with a tag list, and connections to it.
type rig struct {
	t      testing.TB
	found  testdevice.Device
	device *ibverbs.Device
	pd     *ibverbs.PD
	cq     *ibverbs.CQ // of the tag list
	srq    *ibverbs.SRQ
	mr     *ibverbs.MR // one part for each receive
	batch  *tag.Batch
}

// must fails the test for an error and returns the value, which it closes at
// the end of the test.
func must[T interface{ Close() error }](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		return v
	}
}

// open makes a rig, or skips the test if the device matches no tags.
func open(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, found: testdevice.Require(t)}
	testdevice.NoLeaks(t)
	r.device = must(ibverbs.Open(r.found.Name))(t)
	attr, err := r.device.QueryDevice()
	require.NoError(t, err)
	r.found.HaveAttr(t, r.device, &attr, testdevice.Tags(tags))
	r.pd = must(r.device.AllocPD())(t)
	r.cq = r.queue(1024, ibverbs.WCStandard|ibverbs.WCWithTMInfo)
	r.srq = must(r.pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, CQ: r.cq, RecvQueue: tags, MaxTags: tags, MaxTagOps: 8,
	}))(t)
	r.mr = must(r.pd.Alloc(2*tags*room, ibverbs.AccessLocalWrite))(t)
	r.batch, err = tag.NewBatch(tags, 2)
	require.NoError(t, err)
	return r
}

// queue makes a completion queue.
func (r *rig) queue(entries int, fields ibverbs.WCFields) *ibverbs.CQ {
	r.t.Helper()
	channel := must(r.device.CreateCompChannel())(r.t)
	return must(r.device.CreateCQ(ibverbs.CQConfig{CompQueue: entries, Fields: fields, Channel: channel}))(r.t)
}

// sender is the end of a connection that sends messages with tags.
type sender struct {
	*rig
	qp   *ibverbs.QP
	peer *ibverbs.QP // with the tag list
	cq   *ibverbs.CQ
	mr   *ibverbs.MR
	send *ibverbs.SendBatch
}

// connect makes a connection to a queue pair with the tag list. sends is the
// size of that one's send queue; with 0, the device reads the data of
// rendezvous.
func (r *rig) connect(sends int) *sender {
	t := r.t
	t.Helper()
	s := &sender{rig: r, cq: r.queue(512, 0)}
	s.mr = must(r.pd.Alloc(1<<17, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead))(t)
	s.qp = must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, SendQueue: 64, RecvQueue: 64}))(t)
	s.peer = must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, SRQ: r.srq, SendQueue: sends}))(t)
	var err error
	s.send, err = ibverbs.NewSendBatch(1, 2)
	require.NoError(t, err)
	port, err := r.device.QueryPort(r.found.Port)
	require.NoError(t, err)
	for qp, to := range map[*ibverbs.QP]*ibverbs.QP{s.qp: s.peer, s.peer: s.qp} {
		require.NoError(t, qp.ToInit(ibverbs.InitAttr{Port: r.found.Port, Access: ibverbs.AccessRemoteRead}))
		require.NoError(t, qp.ToRTR(ibverbs.RTRAttr{
			Path:    ibverbs.AHAttr{Port: r.found.Port, DLID: port.LID, DGID: r.found.GID, SGIDIndex: r.found.GIDIndex, HopLimit: 1},
			PathMTU: port.ActiveMTU, DestQPNum: to.Num(), MaxDestReadAtomic: 4, MinRNRTimer: 10 * time.Microsecond,
		}))
		require.NoError(t, qp.ToRTS(ibverbs.RTSAttr{MaxReadAtomic: 4}))
	}
	return s
}

// post posts what fill puts into the batch.
func (r *rig) post(fill func(b *tag.Batch) error) {
	r.t.Helper()
	r.batch.Reset()
	require.NoError(r.t, fill(r.batch))
	_, err := tag.Post(r.srq, r.batch)
	require.NoError(r.t, err)
}

// add adds a receive with the ID and the tag, into the part i of the memory.
func (r *rig) add(i int, id, value, mask uint64) tag.Handle {
	r.t.Helper()
	r.post(func(b *tag.Batch) error {
		return b.Add(tag.Op{}, tag.Recv{Tag: value, Mask: mask, ID: id}, r.part(i).Sub(0, 10), r.part(i).Sub(10, room-10))
	})
	h, err := r.batch.Handle(0)
	require.NoError(r.t, err)
	return h
}

func (r *rig) part(i int) ibverbs.Segment { return r.mr.Sub(i*room, room) }

// recv posts a receive for unexpected messages, into the part i of the memory.
func (r *rig) recv(i int, id uint64) {
	r.t.Helper()
	b, err := ibverbs.NewRecvBatch(1, 1)
	require.NoError(r.t, err)
	require.NoError(r.t, b.Recv(id, r.part(i)))
	_, err = r.srq.PostRecv(b)
	require.NoError(r.t, err)
}

// take waits for n completions.
func take(t testing.TB, cq *ibverbs.CQ, n int) (all []ibverbs.WC) {
	t.Helper()
	wcs := make([]ibverbs.WC, n)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(all) < n {
		got, err := cq.Wait(ctx, wcs[:n-len(all)])
		require.NoError(t, err, "%d completions, want %d", len(all), n)
		all = append(all, wcs[:got]...)
	}
	return all
}

// message puts a message into the sender's memory from offset on.
func (s *sender) message(offset int, kind tag.MessageKind, value uint64, rest []byte) ibverbs.Segment {
	s.t.Helper()
	b, err := tag.Header{Kind: kind, Tag: value, Context: 77}.AppendBinary(s.mr.Bytes()[offset:offset])
	require.NoError(s.t, err)
	return s.mr.Sub(offset, len(append(b, rest...)))
}

// sendOne sends a message, and waits until it is acknowledged.
func (s *sender) sendOne(segment ibverbs.Segment) {
	s.t.Helper()
	s.send.Reset()
	require.NoError(s.t, s.send.Send(1, ibverbs.SendSignaled, segment))
	_, err := s.qp.PostSend(s.send)
	require.NoError(s.t, err)
	require.NoError(s.t, take(s.t, s.cq, 1)[0].Err())
}

func bytesOf(n int, key byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) * key
	}
	return b
}

const (
	matched = ibverbs.WCFlagTagMatched
	hasData = ibverbs.WCFlagTagData
)

func TestEager(t *testing.T) {
	r := open(t)
	s := r.connect(0)
	r.add(0, 10, 7, 0xFF)
	data := bytesOf(1000, 3)
	s.sendOne(s.message(0, tag.MessageEager, 0x1107, data))
	wc := take(t, r.cq, 1)[0]
	require.NoError(t, wc.Err())
	value, context := wc.TMInfo()
	require.Equal(t, [...]any{uint64(10), ibverbs.WCTagRecv, matched | hasData, 1000, uint64(0x1107), uint32(77)},
		[...]any{wc.ID(), wc.Opcode(), wc.Flags(), int(wc.ByteLen()), value, context})
	require.Equal(t, data, r.part(0).Bytes()[:1000])
}

// What no tag matches arrives with its header, and the device says so.
func TestUnexpected(t *testing.T) {
	r := open(t)
	s := r.connect(0)
	r.recv(1, 20)
	r.recv(2, 21)
	s.sendOne(s.message(0, tag.MessageEager, 5, []byte("early")))
	r.post(func(b *tag.Batch) error {
		return b.Add(tag.Op{ID: 30, Flags: tag.OpSignaled}, tag.Recv{Tag: 5, Mask: 0xFF, ID: 10}, r.part(0))
	})
	s.sendOne(s.message(0, tag.MessageNoTag, 5, []byte("other")))
	wcs := take(t, r.cq, 3)
	require.Equal(t, [...]any{uint64(20), ibverbs.WCTagRecv, ibverbs.WCFlags(0)}, [...]any{wcs[0].ID(), wcs[0].Opcode(), wcs[0].Flags()})
	header, rest, err := tag.ParseHeader(r.part(1).Bytes()[:wcs[0].ByteLen()])
	require.NoError(t, err)
	require.Equal(t, tag.Header{Kind: tag.MessageEager, Tag: 5, Context: 77}, header)
	require.Equal(t, "early", string(rest))
	require.Equal(t, [...]any{uint64(30), ibverbs.WCTagAdd, ibverbs.WCFlagTagSync}, [...]any{wcs[1].ID(), wcs[1].Opcode(), wcs[1].Flags()})
	require.Equal(t, [...]any{uint64(21), ibverbs.WCNoTagRecv}, [...]any{wcs[2].ID(), wcs[2].Opcode()})

	r.post(func(b *tag.Batch) error { return b.Sync(tag.Op{ID: 31, Flags: tag.OpSignaled, Unexpected: 1}) })
	wc := take(t, r.cq, 1)[0]
	require.Equal(t, [...]any{uint64(31), ibverbs.WCTagSync, ibverbs.WCFlags(0)}, [...]any{wc.ID(), wc.Opcode(), wc.Flags()})
	s.sendOne(s.message(0, tag.MessageEager, 5, []byte("late")))
	require.Equal(t, uint64(10), take(t, r.cq, 1)[0].ID())
	require.Equal(t, "late", string(r.part(0).Bytes()[:4]))
}

// The device reads the data of a rendezvous, and tells the sender of the end.
func TestRendezvous(t *testing.T) {
	r := open(t)
	s := r.connect(0)
	data := bytesOf(room, 5)
	copy(s.mr.Bytes()[4096:], data)
	fin, err := ibverbs.NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, fin.Recv(5, s.mr.Sub(16384, 64)))
	_, err = s.qp.PostRecv(fin)
	require.NoError(t, err)
	r.add(0, 10, 0, 0)
	where, err := tag.RendezvousHeader(s.mr.Remote().Sub(4096, room)).AppendBinary(nil)
	require.NoError(t, err)
	s.send.Reset()
	require.NoError(t, s.send.Send(1, 0, s.message(0, tag.MessageRendezvous, 9, where)))
	_, err = s.qp.PostSend(s.send)
	require.NoError(t, err)
	wcs := take(t, r.cq, 2)
	for i, flags := range []ibverbs.WCFlags{matched, hasData} {
		require.NoError(t, wcs[i].Err())
		require.Equal(t, [...]any{uint64(10), ibverbs.WCTagRecv, flags}, [...]any{wcs[i].ID(), wcs[i].Opcode(), wcs[i].Flags()})
	}
	require.EqualValues(t, room, wcs[1].ByteLen())
	require.Equal(t, data, r.part(0).Bytes())
	wc := take(t, s.cq, 1)[0]
	require.NoError(t, wc.Err())
	require.Equal(t, uint64(5), wc.ID())
	header, rest, err := tag.ParseHeader(s.mr.Sub(16384, int(wc.ByteLen())).Bytes())
	require.NoError(t, err)
	require.Equal(t, tag.Header{Kind: tag.MessageFin, Tag: 9, Context: 77}, header)
	require.Equal(t, where, rest)
}

// If the queue pair's send queue is the program's, so is the rendezvous.
func TestRendezvousOfProgram(t *testing.T) {
	r := open(t)
	s := r.connect(4)
	r.add(0, 10, 0, 0)
	where, err := tag.RendezvousHeader(s.mr.Remote().Sub(4096, room)).AppendBinary(nil)
	require.NoError(t, err)
	s.sendOne(s.message(0, tag.MessageRendezvous, 9, where))
	wc := take(t, r.cq, 1)[0]
	require.ErrorIs(t, wc.Err(), ibverbs.WCTagMatchingRendezvous)
	require.Equal(t, uint64(10), wc.ID())
	header, rest, err := tag.ParseHeader(r.part(0).Bytes())
	require.NoError(t, err)
	require.Equal(t, tag.MessageRendezvous, header.Kind)
	got, _, err := tag.ParseRendezvousHeader(rest)
	require.NoError(t, err)
	require.EqualValues(t, room, got.Len)
}

// A key that is wrong ends the connection, and the receive says why.
func TestRendezvousBadKey(t *testing.T) {
	r := open(t)
	s := r.connect(0)
	r.add(0, 10, 0, 0)
	bad := s.mr.Remote().Sub(0, 100)
	bad.RKey ^= 1
	where, err := tag.RendezvousHeader(bad).AppendBinary(nil)
	require.NoError(t, err)
	s.send.Reset()
	require.NoError(t, s.send.Send(1, 0, s.message(0, tag.MessageRendezvous, 9, where)))
	_, err = s.qp.PostSend(s.send)
	require.NoError(t, err)
	wcs := take(t, r.cq, 2)
	require.NoError(t, wcs[0].Err())
	require.ErrorIs(t, wcs[1].Err(), ibverbs.WCRemoteAccess)
	require.Equal(t, uint64(10), wcs[1].ID())
}

// A full list, too many operations, and a handle that is used up are refused.
func TestLimits(t *testing.T) {
	r := open(t)
	s := r.connect(0)
	var handles []tag.Handle
	for i := range tags {
		handles = append(handles, r.add(i, uint64(i), uint64(i), 0xFF))
	}
	r.batch.Reset()
	require.NoError(t, r.batch.Sync(tag.Op{}))
	require.NoError(t, r.batch.Add(tag.Op{ID: 6}, tag.Recv{}))
	n, err := tag.Post(r.srq, r.batch)
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, syscall.ENOMEM)
	_, err = r.batch.Handle(1)
	require.ErrorIs(t, err, syscall.EINVAL)

	s.sendOne(s.message(0, tag.MessageEager, 3, nil))
	r.post(func(b *tag.Batch) error {
		return errors.Join(b.Delete(tag.Op{ID: 40, Flags: tag.OpSignaled}, handles[3]), b.Delete(tag.Op{ID: 41, Flags: tag.OpSignaled}, handles[4]))
	})
	wcs := take(t, r.cq, 3)
	require.Equal(t, uint64(3), wcs[0].ID())
	require.ErrorIs(t, wcs[1].Err(), ibverbs.WCTagMatching)
	require.NoError(t, wcs[2].Err())
	require.Equal(t, [...]any{uint64(41), ibverbs.WCTagDelete}, [...]any{wcs[2].ID(), wcs[2].Opcode()})

	r.batch.Reset()
	for range 9 {
		require.NoError(t, r.batch.Sync(tag.Op{Flags: tag.OpSignaled}))
	}
	n, err = tag.Post(r.srq, r.batch)
	require.Equal(t, 8, n)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Len(t, take(t, r.cq, 8), 8)
	r.post(func(b *tag.Batch) error { return b.Sync(tag.Op{Flags: tag.OpSignaled}) })
	take(t, r.cq, 1)
}

// Receives are added and deleted while messages of several connections come:
// each message takes one receive, and each receive one message or a deletion.
func TestConcurrently(t *testing.T) {
	r := open(t)
	const connections, messages = 3, 200
	var senders []*sender
	for range connections {
		senders = append(senders, r.connect(0))
	}
	for i := range tags {
		r.recv(tags+i, uint64(1<<20+i))
	}
	var sending sync.WaitGroup
	for k, s := range senders {
		sending.Go(func() {
			for i := range messages {
				segment := s.message(0, tag.MessageEager, uint64(i%4), bytesOf(i, byte(k)))
				s.send.Reset()
				if s.send.Send(1, ibverbs.SendSignaled, segment) != nil {
					return
				}
				if _, err := s.qp.PostSend(s.send); err != nil {
					return
				}
				wcs := make([]ibverbs.WC, 1)
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				_, err := s.cq.Wait(ctx, wcs)
				cancel()
				if err != nil || wcs[0].Err() != nil {
					return
				}
			}
		})
	}
	arrived, deleted, missed := 0, 0, 0
	unexpected := uint32(0)
	listed := map[uint64]tag.Handle{}
	id := uint64(0)
	for arrived < connections*messages {
		if len(listed) < tags/2 {
			listed[id] = r.add(int(id%tags), id, id%4, 3)
			id++
			if id%5 == 0 { // delete one, which a message may take first
				oldest := slices.Min(slices.Collect(maps.Keys(listed)))
				r.post(func(b *tag.Batch) error {
					return b.Delete(tag.Op{ID: 1<<32 | oldest, Flags: tag.OpSignaled | tag.OpSync, Unexpected: unexpected}, listed[oldest])
				})
			}
		}
		for _, wc := range take(t, r.cq, 1) {
			switch {
			case wc.ID() >= 1<<32 && wc.Err() == nil:
				deleted++
				delete(listed, wc.ID()&^(1<<32))
			case wc.ID() >= 1<<32:
				require.ErrorIs(t, wc.Err(), ibverbs.WCTagMatching)
				missed++
			case wc.ID() >= 1<<20 && wc.ID() < 1<<32 && wc.Flags()&matched == 0 && wc.Opcode() == ibverbs.WCTagRecv:
				require.NoError(t, wc.Err())
				arrived++
				unexpected++
				r.recv(tags+int(wc.ID()-1<<20)%tags, wc.ID())
				r.post(func(b *tag.Batch) error { return b.Sync(tag.Op{Unexpected: unexpected}) })
			default:
				require.NoError(t, wc.Err())
				require.Equal(t, matched|hasData, wc.Flags())
				require.Contains(t, listed, wc.ID())
				value, _ := wc.TMInfo()
				require.Equal(t, wc.ID()%4, value)
				delete(listed, wc.ID())
				arrived++
			}
		}
	}
	sending.Wait()
	t.Logf("%d unexpected messages, %d receives deleted, %d taken before that", unexpected, deleted, missed)
}

// The queue outlives a connection that ends under messages, and its objects are
// busy until what uses them is closed.
func TestQueueInUse(t *testing.T) {
	r := open(t)
	s := r.connect(0)
	require.ErrorIs(t, r.cq.Close(), syscall.EBUSY)
	require.ErrorIs(t, r.srq.Close(), syscall.EBUSY)
	r.add(0, 10, 0, 0)
	require.NoError(t, s.peer.SetError())
	other := r.connect(0)
	other.sendOne(other.message(0, tag.MessageEager, 1, []byte("x")))
	require.Equal(t, uint64(10), take(t, r.cq, 1)[0].ID())
	r.post(func(b *tag.Batch) error { return b.Sync(tag.Op{Flags: tag.OpSignaled}) }) // its completion is never polled
}

// The caps are those of the device.
func TestCaps(t *testing.T) {
	r := open(t)
	attr, err := r.device.QueryDevice()
	require.NoError(t, err)
	c := attr.TagMatching
	require.GreaterOrEqual(t, c.MaxRendezvousHeader, uint32(tag.HeaderLen+tag.RendezvousHeaderLen))
	require.Positive(t, slices.Min([]int{c.MaxOps, c.MaxSGE}))
	_, err = r.pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, CQ: r.cq, RecvQueue: 1, MaxTags: c.MaxTags + 1, MaxTagOps: 1,
	})
	require.ErrorIs(t, err, syscall.EINVAL)
}
