// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
)

// Pool shares resources that each connection would otherwise own: a protection
// domain, a completion queue with its channel, receives, and the memory from
// which Write and ReadFrom send. Apart from these, a connection needs little
// more than its queue pair and its ReadBuffer. All connections with the Pool in
// their Config.Pool use it, whether they were dialed or accepted, and on any
// device. The zero Pool is usable. A Pool must not be copied. It need not be
// closed: it frees shared resources when the last connection that uses them is
// closed.
//
// Of the goroutines that wait on these connections, one takes the completions
// for all. A connection from which the program does not read does not delay the
// others: its data waits in its own ReadBuffer.
//
// Connections that share a protection domain are protected less from each
// other: a peer that guesses the key of another connection's memory can write
// to it. So use a Pool only for peers that trust each other.
type Pool struct {
	// Conns is the number of connections that share a completion queue. 0
	// means 64. For further connections, the Pool creates another
	// completion queue.
	Conns int
	// Receives is the number of messages that can arrive on the connections
	// of a shared queue before a goroutine takes them. 0 means as many as
	// all peers may send: Config.RecvQueue and a few more for each
	// connection. With fewer receives, less memory is needed, but messages
	// may have to wait: the peers' devices repeat them every 0.64 ms until
	// a goroutine waits on one of the connections. On iWARP, a message for
	// which there is no receive may end its connection.
	Receives int

	mu    sync.Mutex
	parts []*part // parts that have connections
}

const defaultPoolConns = 64

// join returns a part in which resources for a connection are reserved. leave
// must be called to free them.
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
	s.reserve(config) // cannot fail: a new part has room for a connection
	p.parts = append(p.parts, s)
	return s, nil
}
