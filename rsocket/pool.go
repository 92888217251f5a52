// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
)

// A Pool shares resources that each connection would otherwise own: a
// protection domain, a completion queue with its channel, the receives, and the
// memory that Write and ReadFrom send from. A connection then needs little more
// than its queue pair and its ReadBuffer. Connections with Config.Pool use it,
// dialed and accepted ones alike, on any device. The zero Pool is usable. A
// Pool must not be copied. It needs no Close: it frees shared resources with
// the last connection that uses them.
//
// One of the goroutines that wait on any of these connections takes the
// completions for all. A connection that is not read does not hold up others:
// its bytes wait in its own ReadBuffer.
//
// Connections that share a protection domain protect each other less: a peer
// that guesses the key of another connection's memory can write there. Use one
// Pool for peers that trust each other, or one for each such group.
type Pool struct {
	// Conns is the number of connections per shared completion queue. 0 means 64.
	// When a queue is full, the Pool makes another.
	Conns int
	// Receives is the number of messages that can arrive on the connections of
	// a shared queue before a goroutine polls. 0 means as many as all their
	// peers may send: Config.RecvQueue and a few more for each connection.
	// Fewer receives take less memory, but messages may have to wait at the
	// peers. The peers' devices send them again after 0.64 ms, until a
	// goroutine waits on one of the connections.
	Receives int

	mu    sync.Mutex
	parts []*part // those with connections
}

const defaultPoolConns = 64

// join returns a part with room for a connection. The caller gives the room
// back with leave.
func (p *Pool) join(device *ibverbs.Device, config *Config) (*part, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.parts {
		if s.pd.Device() == device && s.reserve(config) {
			return s, nil
		}
	}
	s, err := p.newPart(device, config)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.reserve(config) // it was made for more than one
	p.parts = append(p.parts, s)
	return s, nil
}
