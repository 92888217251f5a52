package rdmacm_test

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// A flood of requests that are refused holds up no other connection: those of
// other listeners come and go meanwhile, and so do the ends that hear of it.
func TestFloodedListener(t *testing.T) {
	requests, backlog := 3000, 128
	d := needDevice(t)
	needGuest(t)
	if twoHosts() {
		d = testdevice.Device{Name: "rxe2", IPv4: netip.MustParseAddr("198.51.100.1")}
		require.NoError(t, listenOn(t, d.IPv4).Close()) // librdmacm keeps what it opens for that
	} else if testdevice.LinuxSince(t, 6, 17) {
		// A device that waits for 128 answers sends no more requests, nor the end
		// of a connection. Here it is the flood's and everybody else's.
		requests, backlog = 100, 64
	}
	noKernelLeaks(t, d)
	setMaxBacklog(t, "4096") // of requests that nobody has read
	flooded, err := rdmacm.Listen(t.Context(), d.IPv4.String()+":0", &rdmacm.ListenConfig{Backlog: backlog})
	require.NoError(t, err)
	defer func() { require.NoError(t, flooded.Close()) }()
	flood := startPeer(t, "flood", flooded.Addr().String(), strconv.Itoa(requests))
	require.Equal(t, "ready", flood.hear(2*time.Minute))
	quiet := listenOn(t, d.IPv4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	flood.tell()
	soon(t, "the flood", func() bool { return rdmacm.Waiting(flooded) == backlog })
	var ups, ends []time.Duration
	for len(flood.lines) == 0 {
		start := time.Now()
		result := acceptOne(ctx, quiet, nil)
		client, err := rdmacm.Dial(bounded(t), quiet.Addr().String(), nil)
		require.NoError(t, err)
		server := take(t, result, "the server's end")
		require.NoError(t, server.err)
		ups = append(ups, time.Since(start))
		start = time.Now()
		require.NoError(t, client.Close())
		take(t, server.conn.Done(), "the end")
		ends = append(ends, time.Since(start))
		require.NoError(t, server.conn.Close())
		if rdmacm.Refusing(flooded) == 0 && len(ups) > 10 {
			require.NoError(t, flooded.Close()) // refuses those that wait for Accept
		}
	}
	t.Log(flood.hear(patience))
	slices.Sort(ups)
	slices.Sort(ends)
	last := len(ups) - 1
	t.Logf("meanwhile %d connections were made in %v, at most %v, and their ends heard of after %v, at most %v",
		len(ups), ups[last/2], ups[last], ends[last/2], ends[last])
}

// Whatever listens has a channel of its own: work on its requests delays neither
// other connections nor those that it has brought.
func TestListenersHoldUpNobody(t *testing.T) {
	d := needDevice(t)
	ip := netip.AddrPortFrom(d.IPv4, 0)
	b := newBench(t, d)
	for name, listen := range map[string]func(t *testing.T) (ln any, pair func() (client, server func() error, ended func())){
		"Listener": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			ln := listenOn(t, d.IPv4)
			return ln, func() (client, server func() error, ended func()) {
				result := acceptOne(bounded(t), ln, nil)
				conn, err := rdmacm.Dial(bounded(t), ln.Addr().String(), nil)
				require.NoError(t, err)
				a := take(t, result, "the server's end")
				require.NoError(t, a.err)
				return conn.Close, a.conn.Close, func() { take(t, a.conn.Done(), "the end") }
			}
		},
		"HandledID": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			up, ended := make(chan *rdmacm.HandledID, 1), make(chan struct{})
			ln := b.listen(1, b.accepting(func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
				switch ev.Type {
				case rdmacm.EventEstablished:
					up <- id
				case rdmacm.EventDisconnected:
					close(ended)
				}
				return nil
			}))
			return ln, func() (client, server func() error, end func()) {
				conn, err := rdmacm.Dial(bounded(t), ln.ID().LocalAddr().String(), nil)
				require.NoError(t, err)
				server = func(id *rdmacm.HandledID) func() error {
					return func() error { return id.Shutdown(bounded(t)) }
				}(take(t, up, "the server's end"))
				return conn.Close, server, func() { take(t, ended, "the end") }
			}
		},
		"Endpoint": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
			return ln, func() (client, server func() error, ended func()) {
				var request *rdmacm.Endpoint
				accepted := inBackground(func() (err error) {
					if request, err = ln.GetRequest(bounded(t)); err != nil {
						return err
					}
					return request.Accept(bounded(t), rdmacm.ConnParam{})
				})
				conn, err := rdmacm.Dial(bounded(t), ln.ID().LocalAddr().String(), nil)
				require.NoError(t, err)
				require.NoError(t, take(t, accepted, "the server's end"))
				return conn.Close, request.Close, func() {
					ev, err := request.Next(bounded(t))
					require.NoError(t, err)
					require.Equal(t, rdmacm.EventDisconnected, ev.Type)
				}
			}
		},
		"DatagramListener": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			ln, err := rdmacm.ListenDatagram(bounded(t), ip.String(), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, ln.Close()) })
			return ln, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			ln, pair := listen(t)
			client, server, ended := func() error { return nil }, func() error { return nil }, func() {}
			if pair != nil {
				client, server, ended = pair()
			}
			release := rdmacm.HoldEvents(ln)
			held := true
			defer func() {
				if held {
					release()
				}
			}()
			one, other := connect(t, d.IPv4, nil, nil)
			require.NoError(t, one.Close())
			take(t, other.Done(), "the end of another connection")
			require.NoError(t, client())
			ended()
			require.NoError(t, server())
			release()
			held = false
		})
	}
}
