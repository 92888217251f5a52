// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// An exchange is what two programs do, and what they may see of it when any one
// message is lost, late, or there twice. A request that comes again after it
// was rejected, or after its connection's time wait, is a new one, as with
// Linux; the peer, which knows nothing of it, rejects the acceptance with
// reason 6.
type exchange struct {
	name           string
	start          func(client, server *program)
	client, server string // regular expressions of all events
}

const (
	serverAddr = "10.0.0.2:7174"
	soon       = 5 * time.Millisecond
	later      = 20 * time.Second // more than a repetition takes
	muchLater  = 200 * time.Second
)

// accepting lets a program accept what comes.
func accepting(p *program) {
	p.on[connRequest] = func(e *cm.Event) { _ = e.ID.Accept(p.net.now, param(0x20000+uint32(p.net.now/time.Millisecond), "")) }
}

// ending lets a program destroy an ID whose connection has come to its end.
func ending(p *program) {
	destroy := func(e *cm.Event) { e.ID.Destroy(p.net.now) }
	p.on[timewaitExit], p.on[rejected], p.on[unreachable] = destroy, destroy, destroy
	p.on[disconnected] = func(e *cm.Event) { _ = e.ID.Disconnect(p.net.now) }
}

// connect lets a program connect to the server.
func connect(p *program) *cm.ID {
	p.on[connResponse] = func(e *cm.Event) { _ = e.ID.Establish(p.net.now) }
	id := p.resolve(tcp, serverAddr)
	require.NoError(p.net.t, id.Connect(p.net.now, param(0x10001, "")))
	return id
}

var exchanges = []exchange{{
	name: "client disconnects",
	start: func(c, s *program) {
		ending(c)
		ending(s)
		accepting(s)
		id := connect(c)
		c.net.after(later, func() { require.NoError(c.net.t, id.Disconnect(c.net.now)) })
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "client disconnects at once",
	start: func(c, s *program) {
		ending(c)
		ending(s)
		accepting(s)
		connect(c)
		c.on[connResponse] = func(e *cm.Event) {
			require.NoError(c.net.t, e.ID.Establish(c.net.now))
			require.NoError(c.net.t, e.ID.Disconnect(c.net.now))
		}
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST( ESTABLISHED)? DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "server disconnects",
	start: func(c, s *program) {
		ending(c)
		ending(s)
		accepting(s)
		connect(c)
		s.on[established] = func(e *cm.Event) {
			s.net.after(later, func() { require.NoError(s.net.t, e.ID.Disconnect(s.net.now)) })
		}
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "both disconnect",
	start: func(c, s *program) {
		ending(c)
		ending(s)
		accepting(s)
		id := connect(c)
		var child *cm.ID
		s.on[established] = func(e *cm.Event) { child = e.ID }
		c.net.after(later, func() {
			require.NoError(c.net.t, id.Disconnect(c.net.now))
			require.NoError(c.net.t, child.Disconnect(s.net.now))
		})
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "server does not agree to the end but by destroying",
	start: func(c, s *program) {
		ending(c)
		accepting(s)
		id := connect(c)
		s.on[disconnected] = func(e *cm.Event) { e.ID.Destroy(s.net.now) }
		s.on[rejected] = s.on[disconnected]
		c.net.after(later, func() { require.NoError(c.net.t, id.Disconnect(c.net.now)) })
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "server rejects",
	start: func(c, s *program) {
		ending(c)
		connect(c)
		s.on[connRequest] = func(e *cm.Event) {
			require.NoError(s.net.t, e.ID.Reject(s.net.now, 0, []byte("no")))
			e.ID.Destroy(s.net.now)
		}
	},
	client: `REJECTED\(28\)`,
	server: `CONNECT_REQUEST( CONNECT_REQUEST)*`,
}, {
	name: "server destroys the request",
	start: func(c, s *program) {
		ending(c)
		connect(c)
		s.on[connRequest] = func(e *cm.Event) { e.ID.Destroy(s.net.now) }
	},
	client: `REJECTED\(28\)`,
	server: `CONNECT_REQUEST( CONNECT_REQUEST)*`,
}, {
	name: "server takes long",
	start: func(c, s *program) {
		ending(c)
		ending(s)
		id := connect(c)
		s.on[connRequest] = func(e *cm.Event) {
			s.net.after(2*later, func() { require.NoError(s.net.t, e.ID.Accept(s.net.now, param(0x20002, ""))) })
		}
		c.on[connResponse] = func(e *cm.Event) {
			c.net.after(later, func() { require.NoError(c.net.t, id.Establish(c.net.now)) })
			c.net.after(muchLater, func() { require.NoError(c.net.t, id.Disconnect(c.net.now)) })
		}
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "client gives up before it is accepted",
	start: func(c, s *program) {
		ending(s)
		id := connect(c)
		c.net.after(soon, func() { id.Destroy(c.net.now) })
		s.on[connRequest] = func(e *cm.Event) {
			s.net.after(later, func() {
				if e.ID.Accept(s.net.now, param(0x20002, "")) != nil {
					e.ID.Destroy(s.net.now)
				}
			})
		}
	},
	client: ``,
	server: `(CONNECT_REQUEST( REJECTED\(6\))?)?( CONNECT_REQUEST REJECTED\(6\))*`,
}, {
	name: "client gives up when it is accepted",
	start: func(c, s *program) {
		ending(s)
		accepting(s)
		connect(c)
		c.on[connResponse] = func(e *cm.Event) { e.ID.Destroy(c.net.now) }
	},
	client: `CONNECT_RESPONSE`,
	server: `CONNECT_REQUEST REJECTED\((28|6)\)( CONNECT_REQUEST REJECTED\(6\))*`,
}, {
	name: "client rejects when it is accepted",
	start: func(c, s *program) {
		ending(s)
		accepting(s)
		connect(c)
		c.on[connResponse] = func(e *cm.Event) {
			require.NoError(c.net.t, e.ID.Reject(c.net.now, 0, nil))
			c.net.after(muchLater, func() { e.ID.Destroy(c.net.now) })
		}
	},
	client: `CONNECT_RESPONSE`,
	server: `CONNECT_REQUEST REJECTED\((28|6)\)( CONNECT_REQUEST REJECTED\(6\))*`,
}, {
	name: "server gives up after accepting",
	start: func(c, s *program) {
		ending(c)
		connect(c)
		s.on[connRequest] = func(e *cm.Event) {
			_ = e.ID.Accept(s.net.now, param(0x20002, ""))
			s.net.after(soon, func() { e.ID.Destroy(s.net.now) })
		}
		c.on[connResponse] = func(e *cm.Event) {
			c.net.after(10*soon, func() { _ = e.ID.Establish(c.net.now) })
			c.net.after(muchLater, func() { _ = e.ID.Disconnect(c.net.now) })
		}
	},
	client: `(CONNECT_RESPONSE )?REJECTED\((28|10)\)|CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST( CONNECT_REQUEST( REJECTED\(6\))?)?`,
}, {
	name: "client destroys the connection",
	start: func(c, s *program) {
		ending(s)
		accepting(s)
		id := connect(c)
		c.net.after(later, func() { id.Destroy(c.net.now) })
		s.on[established] = func(e *cm.Event) {
			s.net.after(muchLater, func() { _ = e.ID.Disconnect(s.net.now) })
		}
	},
	client: `CONNECT_RESPONSE`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "server destroys the connection",
	start: func(c, s *program) {
		ending(c)
		accepting(s)
		id := connect(c)
		s.on[established] = func(e *cm.Event) {
			s.net.after(later, func() { e.ID.Destroy(s.net.now) })
		}
		s.on[rejected] = func(e *cm.Event) { e.ID.Destroy(s.net.now) }
		c.net.after(muchLater, func() { _ = id.Disconnect(c.net.now) })
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "data come before the last message",
	start: func(c, s *program) {
		ending(c)
		ending(s)
		id := connect(c)
		s.on[connRequest] = func(e *cm.Event) {
			if e.ID.Accept(s.net.now, param(0x20002, "")) != nil {
				e.ID.Destroy(s.net.now)
			}
		}
		c.on[connResponse] = func(e *cm.Event) {
			require.NoError(c.net.t, e.ID.Establish(c.net.now))
			require.NoError(c.net.t, s.events[0].ID.Notify(libibverbs.IBV_EVENT_COMM_EST))
		}
		c.net.after(later, func() { require.NoError(c.net.t, id.Disconnect(c.net.now)) })
	},
	client: `CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT`,
	server: `CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT( CONNECT_REQUEST REJECTED\(6\))?`,
}, {
	name: "service is found",
	start: func(c, s *program) {
		s.on[connRequest] = func(e *cm.Event) {
			require.NoError(s.net.t, e.ID.Accept(s.net.now, param(0x20002, "")))
			s.net.after(soon, func() { e.ID.Destroy(s.net.now) })
		}
		id := c.resolve(udp, serverAddr)
		require.NoError(c.net.t, id.Connect(c.net.now, param(0x10001, "")))
		c.net.after(muchLater, func() { id.Destroy(c.net.now) })
	},
	client: `ESTABLISHED`,
	server: `CONNECT_REQUEST( CONNECT_REQUEST)*`,
}, {
	name: "service is refused",
	start: func(c, s *program) {
		ending(c)
		s.on[connRequest] = func(e *cm.Event) { e.ID.Destroy(s.net.now) }
		id := c.resolve(udp, serverAddr)
		require.NoError(c.net.t, id.Connect(c.net.now, param(0x10001, "")))
	},
	client: `UNREACHABLE\(2\)`,
	server: `CONNECT_REQUEST( CONNECT_REQUEST)*`,
}, {
	name: "service takes long",
	start: func(c, s *program) {
		s.on[connRequest] = func(e *cm.Event) {
			s.net.after(later, func() {
				require.NoError(s.net.t, e.ID.Accept(s.net.now, param(0x20002, "")))
				e.ID.Destroy(s.net.now)
			})
		}
		id := c.resolve(udp, serverAddr)
		require.NoError(c.net.t, id.Connect(c.net.now, param(0x10001, "")))
		c.net.after(muchLater, func() { id.Destroy(c.net.now) })
	},
	client: `ESTABLISHED`,
	server: `CONNECT_REQUEST( CONNECT_REQUEST)?`,
}, {
	name: "client gives up the search for a service",
	start: func(c, s *program) {
		s.on[connRequest] = func(e *cm.Event) {
			require.NoError(s.net.t, e.ID.Accept(s.net.now, param(0x20002, "")))
			e.ID.Destroy(s.net.now)
		}
		id := c.resolve(udp, serverAddr)
		require.NoError(c.net.t, id.Connect(c.net.now, param(0x10001, "")))
		c.net.after(latency/2, func() { id.Destroy(c.net.now) })
	},
	client: ``,
	server: `(CONNECT_REQUEST ?)*`,
}}

// hitch returns a fault that lets one message, counted from 0, arrive at other
// times.
func hitch(message int, at ...time.Duration) func(wire.Message) []time.Duration {
	number := -1
	return func(wire.Message) []time.Duration {
		if number++; number == message {
			return at
		}
		return []time.Duration{latency}
	}
}

// play plays an exchange and returns how many messages it took.
func (x exchange) play(t *testing.T, fault func(wire.Message) []time.Duration) int {
	n := newNetwork(t)
	n.fault = fault
	client := n.node(1, "10.0.0.1").program("client")
	server := n.node(1, "10.0.0.2").program("server")
	listeners := []*cm.ID{server.listen(tcp, serverAddr), server.listen(udp, serverAddr)}
	x.start(client, server)
	n.settle()
	events := join(client.log)
	require.Regexp(t, "^ADDR_RESOLVED ROUTE_RESOLVED ?("+x.client+")$", events, "client")
	require.Regexp(t, "^("+x.server+")$", join(server.log), "server")
	for _, id := range listeners {
		id.Destroy(n.now)
	}
	n.settle()
	n.empty()
	return len(n.sent)
}

// TestEachMessage lets each message of each exchange be lost, come twice, and
// come late: behind the next ones, behind repetitions, and after all is over.
func TestEachMessage(t *testing.T) {
	hitches := map[string][]time.Duration{
		"lost":                {},
		"twice":               {latency, latency},
		"twice, reordered":    {latency, 4 * latency},
		"late":                {4 * latency},
		"very late":           {10 * time.Second},
		"after all":           {time.Hour},
		"twice, very late":    {latency, 10 * time.Second},
		"twice, after all":    {latency, time.Hour},
		"a storm of the same": {0, 0, 0, latency, latency, 8 * latency, time.Minute},
	}
	for _, x := range exchanges {
		t.Run(x.name, func(t *testing.T) {
			messages := 0
			t.Run("smooth", func(t *testing.T) { messages = x.play(t, nil) })
			for name, at := range hitches {
				for i := range messages {
					t.Run(fmt.Sprint(name, " ", i), func(t *testing.T) { x.play(t, hitch(i, at...)) })
				}
			}
		})
	}
}
