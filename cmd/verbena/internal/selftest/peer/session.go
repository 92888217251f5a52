// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Session is a client's session with a server, which serves no other client
// until the session is closed.
type Session struct {
	Local  netip.Addr     // address of this end, of the device that is checked
	Server netip.AddrPort // address of the server
	token  uint64
	conn   *rdmacm.Conn
}

// ErrOther is why there can be no session with the program that listens on an
// address.
var ErrOther = errors.New("the program that listens there is not verbena selftest -L of this version")

// Join begins a session with the server at an address, from a local address. If
// another program or another version listens there, it fails with ErrOther.
func Join(ctx context.Context, local netip.Addr, server string) (*Session, error) {
	s := &Session{Local: local}
	conn, err := s.dial(ctx, server, greeting{service: session, length: byte(greetingLen)}, rdmacm.Config{
		SendQueue: 1, RecvQueue: 1, ReadDepth: -1, KeepAlive: vanished,
	})
	switch {
	case isSilent(err):
		return nil, fmt.Errorf("%s: %w, or cannot accept connections, and prints why", server, ErrOther)
	case strings.Contains(Why(err), ErrStranger.Error()):
		return nil, fmt.Errorf("%s: %w", server, ErrOther)
	case Why(err) != "":
		return nil, fmt.Errorf("%w%s", err, Why(err))
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w; does verbena selftest -L run there?", err)
	case err != nil:
		return nil, err
	}
	answer := conn.PeerData()
	if len(answer) < 8 || binary.BigEndian.Uint64(answer) == 0 {
		return nil, errors.Join(fmt.Errorf("%s: %w", server, ErrOther), conn.Close())
	}
	s.token, s.Server, s.conn = binary.BigEndian.Uint64(answer), conn.RemoteAddr(), conn
	return s, nil
}

// isSilent reports whether a connection was refused by a program that does not
// say why. A server does not if it has no queue pair for the connection.
func isSilent(err error) bool {
	refused, ok := errors.AsType[*rdmacm.RejectedError](err)
	return ok && refused.Reason == rdmacm.ReasonConsumer && Why(err) == ""
}

// Why returns what a server that has refused a connection says, after a colon
// and a space, or nothing.
func Why(err error) string {
	var refused *rdmacm.RejectedError
	if !errors.As(err, &refused) || refused.Reason == rdmacm.ReasonNoListener {
		return ""
	}
	text := string(bytes.TrimRight(refused.PrivateData, "\x00"))
	if text == "" {
		return ""
	}
	return ": " + program.Printable(text)
}

// Close ends the session, and waits for some seconds until the server knows.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.conn.Shutdown(ctx); ctx.Err() == nil {
		return err
	}
	return nil // the server may have vanished
}

// Device returns the device of this end.
func (s *Session) Device() (*ibverbs.Device, error) { return s.conn.ID().Device() }

// Err returns why the session has ended, or nil.
func (s *Session) Err() error { return s.conn.Err() }

// Request is the private data with which a client asks for a service. ask is a
// number whose meaning depends on the service; the data have at least length
// bytes.
func (s *Session) Request(service Service, ask, length int) []byte {
	return greeting{s.token, service, byte(ask), byte(max(length, greetingLen))}.bytes()
}

// Dial asks for a service. The config may have anything but private data.
func (s *Session) Dial(ctx context.Context, service Service, ask, length int, config rdmacm.Config) (*rdmacm.Conn, error) {
	return s.dial(ctx, s.Server.String(), greeting{s.token, service, byte(ask), byte(max(length, greetingLen))}, config)
}

func (s *Session) dial(ctx context.Context, server string, g greeting, config rdmacm.Config) (*rdmacm.Conn, error) {
	config.PrivateData = g.bytes()
	return (&rdmacm.Dialer{Config: config, LocalAddr: s.Local.String()}).Dial(ctx, server)
}

// Probe returns an error if the server does not serve the session any more.
func (s *Session) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := s.Dial(ctx, Told, 0, 0, rdmacm.Config{SendQueue: 1, RecvQueue: 1, ReadDepth: -1})
	if err != nil {
		return err
	}
	return conn.Close()
}

// Port returns the address of a service that listens on a port of its own.
func (s *Session) Port(conn *rdmacm.Conn) netip.AddrPort {
	answer := conn.PeerData()
	if len(answer) < 2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(s.Server.Addr(), binary.BigEndian.Uint16(answer))
}

// Seen returns what the server has seen of a request for the service Told, and
// reports whether the answer is as it was asked for.
func (s *Session) Seen(answer []byte, ask int) (Seen, bool) { return parseSeen(answer, ask) }

// Lent returns the memory that the server lends on a connection for Memory.
func (s *Session) Lent(conn *rdmacm.Conn) (r ibverbs.RemoteBuffer, ok bool) {
	answer := conn.PeerData()
	if len(answer) < 12 {
		return r, false
	}
	return ibverbs.RemoteBuffer{Addr: binary.BigEndian.Uint64(answer), RKey: binary.BigEndian.Uint32(answer[8:]), Len: MemorySize}, true
}

// Sum returns the message that asks for the checksum of lent memory.
func Sum(offset, n int) []byte {
	b := binary.BigEndian.AppendUint32([]byte{sum}, uint32(offset))
	return binary.BigEndian.AppendUint32(b, uint32(n))
}
