// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// What an ID may see. It always comes to an end: one of the events that end it,
// or its destruction (x) by its program.
var (
	activeLife = regexp.MustCompile(`^ADDR_RESOLVED ROUTE_RESOLVED (x|UNREACHABLE\(-110\) x|REJECTED\(\d+\) x|` +
		`CONNECT_RESPONSE (x|REJECTED\(\d+\) x|DISCONNECTED(\(-110\))? (TIMEWAIT_EXIT )?x))$`)
	passiveLife = regexp.MustCompile(`^CONNECT_REQUEST (x|UNREACHABLE\(-110\) x|REJECTED\(\d+\) x|DISCONNECTED (TIMEWAIT_EXIT )?x|` +
		`ESTABLISHED (x|REJECTED\(\d+\) x|DISCONNECTED(\(-110\))? (TIMEWAIT_EXIT )?x))$`)
	serviceLife = regexp.MustCompile(`^(ADDR_RESOLVED ROUTE_RESOLVED (ESTABLISHED |UNREACHABLE\((-110|\d)\) )?|CONNECT_REQUEST )x$`)
)

// A storm is thousands of connections whose programs do anything that is
// allowed.
type storm struct {
	*network
	random *rand.Rand
	lives  map[*cm.ID][]string
	ended  map[*cm.ID]bool
	done   int // connections that became established at both ends, or services that were found
}

// chance returns true with a probability in percent.
func (s *storm) chance(percent int) bool { return s.random.IntN(100) < percent }

// moment returns a time up to some seconds, mostly short.
func (s *storm) moment() time.Duration {
	return time.Duration(s.random.ExpFloat64() * float64(300*time.Millisecond))
}

func (s *storm) destroy(id *cm.ID) {
	if !s.ended[id] {
		s.ended[id] = true
		s.lives[id] = append(s.lives[id], "x")
		id.Destroy(s.now)
	}
}

// soon does something with an ID at some time, unless it is destroyed by then.
func (s *storm) soon(id *cm.ID, do func()) {
	s.after(s.moment(), func() {
		if !s.ended[id] {
			do()
		}
	})
}

// handle is what a program does with an event.
func (s *storm) handle(e *cm.Event) {
	id := e.ID
	name := strings.TrimPrefix(e.Type.String(), "RDMA_CM_EVENT_")
	if e.Status != 0 {
		name += fmt.Sprintf("(%d)", e.Status)
	}
	require.False(s.t, s.ended[id], "an event of an ID that is destroyed")
	s.lives[id] = append(s.lives[id], name)
	if s.chance(3) {
		s.soon(id, func() { s.destroy(id) })
	}
	switch e.Type {
	case connRequest:
		s.soon(id, func() {
			switch {
			case s.chance(10):
				_ = id.Reject(s.now, 0, nil)
				s.destroy(id)
			case id.Accept(s.now, param(s.qpn(), "")) != nil || id.PortSpace() == udp:
				s.destroy(id)
			}
		})
	case connResponse:
		s.soon(id, func() {
			if s.chance(5) {
				_ = id.Reject(s.now, 0, nil)
				s.destroy(id)
			} else if id.Establish(s.now) == nil {
				// Each connected ID disconnects at some time, since the last message of
				// a peer that destroys its ID may be lost.
				s.after(10*s.moment(), func() { s.end(id) })
			}
		})
	case established:
		s.done++
		s.after(10*s.moment(), func() { s.end(id) })
	case disconnected:
		s.soon(id, func() {
			if s.chance(70) {
				require.NoError(s.t, id.Disconnect(s.now))
				s.after(time.Minute, func() { s.destroy(id) })
			} else {
				s.destroy(id)
			}
		})
	case rejected, unreachable, timewaitExit:
		s.soon(id, func() { s.destroy(id) })
	}
}

func (s *storm) end(id *cm.ID) {
	switch {
	case s.ended[id]:
	case id.PortSpace() == udp || s.chance(20):
		s.destroy(id)
	default:
		require.NoError(s.t, id.Disconnect(s.now))
	}
}

// qpn returns a queue pair's number that no other connection has.
func (s *storm) qpn() uint32 {
	s.serial++
	return s.serial
}

// TestStorm connects thousands of times among three nodes that lose, double and
// delay messages.
func TestStorm(t *testing.T) {
	for _, test := range []struct {
		name string
		loss int // percent
		seed uint64
	}{{"smooth", 0, 1}, {"some loss", 5, 2}, {"some loss, another seed", 5, 3}, {"much loss", 25, 4}} {
		t.Run(test.name, func(t *testing.T) {
			s := &storm{
				network: newNetwork(t), random: rand.New(rand.NewPCG(test.seed, 1)),
				lives: map[*cm.ID][]string{}, ended: map[*cm.ID]bool{},
			}
			if test.loss > 0 {
				s.fault = func(wire.Message) []time.Duration {
					var at []time.Duration
					for !s.chance(test.loss) && len(at) < 3 {
						at = append(at, s.moment()/20)
						if !s.chance(10) {
							break
						}
					}
					return at
				}
			}
			var programs []*program
			var listeners []*cm.ID
			for i := range 3 {
				p := s.node(cm.DefaultScale, fmt.Sprintf("10.0.0.%d", i+1)).program("p")
				for kind := range librdmacm.RDMA_CM_EVENT_USER {
					p.on[kind] = s.handle
				}
				programs = append(programs, p)
				for _, space := range []librdmacm.PortSpace{tcp, udp} {
					listeners = append(listeners, p.listen(space, fmt.Sprintf("10.0.0.%d:7174", i+1)))
				}
			}
			const connections = 1000
			for range connections {
				s.after(time.Duration(s.random.IntN(int(20*time.Second))), func() {
					from, to, space := programs[s.random.IntN(3)], 1+s.random.IntN(3), tcp
					if s.chance(15) {
						space = udp
					}
					id := from.id(space)
					require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:7174", to))))
					require.NoError(t, id.ResolveRoute(time.Second))
					require.NoError(t, id.Connect(s.now, param(s.qpn(), "")))
					if s.chance(3) {
						s.soon(id, func() { s.destroy(id) })
					}
					s.after(5*time.Minute, func() {
						if space == udp {
							s.destroy(id)
						}
					})
				})
			}
			s.settle()
			for _, id := range listeners {
				id.Destroy(s.now)
			}
			s.settle()
			s.network.empty()
			require.GreaterOrEqual(t, len(s.lives), connections)
			for id, life := range s.lives {
				want := activeLife
				if life[0] == "CONNECT_REQUEST" {
					want = passiveLife
				}
				if id.PortSpace() == udp {
					want = serviceLife
				}
				require.Regexp(t, want, strings.Join(life, " "))
				if test.loss == 0 {
					require.NotContains(t, strings.Join(life, " "), "-110", "nothing has to time out")
				}
			}
			require.Greater(t, s.done, connections/2)
		})
	}
}
