// SPDX-License-Identifier: Apache-2.0

package links

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/transfer"
)

var ofTransfers = []check.Feature{check.Transfers}

var transfers = []check.Check{
	{Name: "transfers.batches", Proves: "batches of reads and writes are done, and the notification comes after their data", Features: ofTransfers, Run: on(batches)},
	{Name: "transfers.forbidden", Proves: "a transfer that the other end does not permit fails, and those after it are done", Features: ofTransfers, Run: on(forbidden)},
}

// linked is a connection between engines.
type linked struct {
	*rig
	peer               *transfer.Peer
	readable, writable *transfer.RemoteRegion
}

func (r *rig) link() *linked {
	at := r.service(peer.Transfers, 0)
	r.Reserve(3 * peer.RegionSize)
	engine, err := transfer.New(peer.EngineConfig(r.Target().Device))
	r.ok(err)
	r.Close(engine)
	ctx, cancel := r.wait()
	defer cancel()
	l := &linked{rig: r}
	l.peer, err = engine.Dial(ctx, at.String(), transfer.DialConfig{})
	r.ok(err)
	r.Close(l.peer)
	l.readable, err = l.peer.Region(ctx, peer.Readable)
	r.ok(err)
	l.writable, err = l.peer.Region(ctx, peer.Writable)
	r.ok(err)
	return l
}

// do submits a batch and waits for it.
func (l *linked) do(b *transfer.Batch) error {
	ctx, cancel := l.wait()
	defer cancel()
	if err := b.Submit(ctx); err != nil {
		return err
	}
	return b.Wait(ctx)
}

func batches(r *rig) {
	if !r.reads() {
		r.Lacks("RDMA reads")
	}
	l := r.link()
	in, out := make([]byte, peer.RegionSize), filled(peer.RegionSize, 9)
	b := l.peer.NewBatch(4)
	const half = peer.RegionSize / 2
	message := []byte("both halves")
	r.ok(errors.Join(
		b.Read(in[half:], l.readable, half), b.Write(l.writable, 0, out[:half]), b.Read(in[:half], l.readable, 0), b.Write(l.writable, half, out[half:]),
		b.Notify(message),
	))
	r.ok(l.do(b))
	r.want(bytes.Equal(in, peer.Pattern(peer.RegionSize)), "other bytes were read than the server has")
	ctx, cancel := r.wait()
	defer cancel()
	answer, err := l.peer.Receive(ctx)
	r.ok(err)
	r.want(len(answer) == 4+len(message) && bytes.Equal(answer[4:], message), "the notification came back as %q", answer)
	r.want(binary.BigEndian.Uint32(answer) == crc32.ChecksumIEEE(out), "the server has other bytes than were written when it has the notification")
}

func forbidden(r *rig) {
	if !r.reads() {
		r.Lacks("RDMA reads")
	}
	l := r.link()
	data := filled(4096, 1)
	b := l.peer.NewBatch(1)
	err := b.Write(l.readable, 0, data)
	if err == nil {
		err = l.do(b)
	}
	r.want(err != nil, "a write to a region that may only be read succeeds")
	b = l.peer.NewBatch(1)
	r.want(b.Read(data, l.readable, peer.RegionSize-1) != nil, "a read beyond the end of a region is not refused")
	r.ok(b.Read(data, l.readable, 100))
	r.ok(l.do(b))
	r.want(bytes.Equal(data, peer.Pattern(peer.RegionSize)[100:100+len(data)]), "other bytes were read than the server has")
}
