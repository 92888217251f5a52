// SPDX-License-Identifier: Apache-2.0

// Package peer is the other end of the connections of verbena selftest. A
// Server serves one client after the other; a client has a Session with it, and
// opens connections for its services.
package peer

import (
	"encoding/binary"
	"errors"
)

// Service is what a connection is for.
type Service byte

// The services.
const (
	session   Service = iota + 1
	Echo              // the server sends each message back
	Refused           // the server refuses, with as many bytes of private data as were asked for
	Told              // the server sends what it has seen of the request, and as many bytes as were asked for
	Ends              // the server ends the connection after the first message
	Memory            // the server lends memory, and says what is in it
	Unused            // the server says a port on which no program listens
	Sockets           // the server listens for rsockets, until this connection ends
	Datagrams         // the server listens for datagrams, until this connection ends
	Transfers         // the server listens with a transfer.Engine, until this connection ends
	Figures           // the server is the other end of a measurement, until this connection ends
	services          // how many there are
)

// hello is the start of the private data of requests. It shows a server that
// the client is verbena selftest of this version.
const hello = "vselfts1"

// Lengths of private data, in bytes.
const (
	greetingLen = len(hello) + 8 + 3 // what a request begins with

	MaxRequest    = 56 // the most private data of a request on InfiniBand and RoCE
	MaxAcceptance = 196
	MaxRejection  = 148

	SeenLen = 10 // of what the server has seen
)

// greeting is the private data of a request.
type greeting struct {
	token   uint64 // of the session
	service Service
	ask     byte // a number whose meaning depends on the service
	length  byte // of the private data; behind the greeting there is a pattern
}

// bytes returns the private data.
func (g greeting) bytes() []byte {
	b := binary.BigEndian.AppendUint64([]byte(hello), g.token)
	b = append(b, byte(g.service), g.ask, g.length)
	return append(b, Pattern(int(g.length)-greetingLen)...)
}

// ErrStranger is why a server refuses a client that is not verbena selftest.
var ErrStranger = errors.New("the client is not verbena selftest of this version")

// parse reads private data, which may end with zeros.
func parse(b []byte) (g greeting, err error) {
	if len(b) < greetingLen || string(b[:len(hello)]) != hello {
		return g, ErrStranger
	}
	b = b[len(hello):]
	g = greeting{binary.BigEndian.Uint64(b), Service(b[8]), b[9], b[10]}
	rest, n := b[11:], int(g.length)-greetingLen
	if g.service == 0 || g.service >= services || n < 0 {
		return g, ErrStranger
	}
	if !HasPattern(rest, n) {
		return g, errors.New("the private data of the request are not those that were sent")
	}
	return g, nil
}

// Pattern returns n bytes that tell their place and are not 0, or none.
func Pattern(n int) []byte {
	b := make([]byte, max(n, 0))
	for i := range b {
		b[i] = byte(i%255) + 1
	}
	return b
}

// HasPattern reports whether b has the n bytes of Pattern, and zeros behind
// them.
func HasPattern(b []byte, n int) bool {
	if len(b) < n {
		return false
	}
	for i, v := range b {
		if want := byte(i%255) + 1; i < n && v != want || i >= n && v != 0 {
			return false
		}
	}
	return true
}

// Seen is what a server has seen of a request with the service Told.
type Seen struct {
	QPNum                              uint32 // the client's queue pair
	ResponderResources, InitiatorDepth byte
	RetryCount, RNRRetryCount          byte
	Port                               uint16 // from which the request came
}

func (s Seen) bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, s.QPNum)
	b = append(b, s.ResponderResources, s.InitiatorDepth, s.RetryCount, s.RNRRetryCount)
	return binary.BigEndian.AppendUint16(b, s.Port)
}

// parseSeen reads what the server has seen from its private data, and reports
// whether ask bytes of Pattern follow and nothing else.
func parseSeen(b []byte, ask int) (s Seen, ok bool) {
	if len(b) < SeenLen {
		return s, false
	}
	s = Seen{
		binary.BigEndian.Uint32(b), b[4], b[5], b[6], b[7], binary.BigEndian.Uint16(b[8:]),
	}
	return s, HasPattern(b[SeenLen:], ask)
}
