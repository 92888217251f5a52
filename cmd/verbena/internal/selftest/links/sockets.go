// SPDX-License-Identifier: Apache-2.0

package links

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/rsocket"
)

var ofSockets = []check.Feature{check.Sockets}

var sockets = []check.Check{
	{Name: "sockets.echo", Proves: "what is written to a socket comes back, also after one direction has ended", Features: ofSockets, Run: on(socketEcho)},
	{Name: "sockets.stream", Proves: "a long stream arrives whole", Features: ofSockets, Run: on(socketStream)},
}

// socket connects a socket, and tells the server what to do.
func (r *rig) socket(kind byte) *rsocket.Conn {
	at := r.service(peer.Sockets, 0)
	r.Reserve(1 << 20) // of both ends: buffers of 128 KiB and headers
	ctx, cancel := r.wait()
	defer cancel()
	conn, err := (&rsocket.Dialer{LocalAddr: r.session.Local.String()}).DialContext(ctx, "rdma", at.String())
	r.ok(err)
	s := conn.(*rsocket.Conn)
	r.Close(s)
	stop := context.AfterFunc(r.Context(), func() { _ = s.SetDeadline(time.Unix(1, 0)) }) // now
	r.Close(check.Closer(func() error { stop(); return nil }))
	_, err = s.Write([]byte{kind})
	r.ok(err)
	return s
}

func socketEcho(r *rig) {
	s := r.socket(peer.SendBack)
	data := filled(300_000, 3)
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(data)
		wrote <- errors.Join(err, s.CloseWrite())
	}()
	got, err := io.ReadAll(s)
	r.ok(errors.Join(err, <-wrote))
	r.want(bytes.Equal(got, data), "%d of %d bytes came back, or others", len(got), len(data))
}

func socketStream(r *rig) {
	const chunks, size = 64, 256 << 10
	s := r.socket(peer.CheckSum)
	sum := crc32.NewIEEE()
	start := time.Now()
	for i := range chunks {
		chunk := filled(size, byte(i))
		_, _ = sum.Write(chunk)
		_, err := s.Write(chunk)
		r.ok(err)
	}
	r.ok(s.CloseWrite())
	answer, err := io.ReadAll(s)
	r.ok(err)
	took := time.Since(start)
	r.want(len(answer) == 4, "the server's answer has %d bytes", len(answer))
	r.want(binary.BigEndian.Uint32(answer) == sum.Sum32(), "the server has read other bytes than were written")
	r.Notef("%d MiB in %v", chunks*size>>20, took.Round(time.Millisecond))
}
