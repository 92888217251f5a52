// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestSetupFails(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	broken := errors.New("no coffee")
	config := &rdmacm.Config{Setup: func(c *rdmacm.Conn) error {
		if _, err := c.Alloc(4096, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		return broken
	}}
	_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(config))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "set up the connection: no coffee")

	result := acceptOne(ctx, ln, config)
	_, err = rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the peer is told")
	require.ErrorIs(t, (<-result).err, broken)
}

// Memory that Setup has registered without Alloc keeps a failed attempt's
// protection domain until the caller closes both.
func TestSetupLeavesMemory(t *testing.T) {
	needOwnDomain(t)
	d := needDevice(t)
	var mr *ibverbs.MR
	var conn *rdmacm.Conn
	_, err := rdmacm.Dial(bounded(t), d.IPv4.String()+":7", inPool(&rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		conn = c
		mr, err = c.PD().Register(make([]byte, 100), ibverbs.AccessLocalWrite)
		return err
	}}))

	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, err, &busy)
	require.NoError(t, mr.Close())
	require.NoError(t, conn.Close())
}

func TestSharedProtectionDomain(t *testing.T) {
	d := needDevice(t)
	device := find(t, d.Name)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	mr, err := pd.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)

	shared := &rdmacm.Config{PD: pd}
	client1, server1 := connect(t, d.IPv4, shared, shared)
	client2, server2 := connect(t, d.IPv4, shared, shared)
	ctx := bounded(t)
	for i, ends := range [][2]*rdmacm.Conn{{client1, server1}, {client2, server2}} {
		require.Same(t, pd, ends[0].PD())
		source, sink := mr.Sub(16*i, 8), mr.Sub(16*i+8, 8)
		copy(source.Bytes(), fmt.Sprint("message", i))
		pending, err := ends[1].PostRecv(sink)
		require.NoError(t, err)
		require.NoError(t, ends[0].Send(ctx, source))
		_, err = pending.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("message", i), string(sink.Bytes()))
	}
	var busy *ibverbs.BusyError
	require.ErrorAs(t, pd.Close(), &busy)
	for _, conn := range []*rdmacm.Conn{client1, server1, client2, server2} {
		require.NoError(t, conn.Close())
	}
	require.NotNil(t, mr.Bytes(), "is not the connections'")
	require.NoError(t, mr.Close())
	require.NoError(t, pd.Close())
}

func TestForeignProtectionDomain(t *testing.T) {
	d := needDevice(t)
	device, err := ibverbs.Open(d.Name) // not as librdmacm has it open
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	_, err = rdmacm.Dial(bounded(t), d.IPv4.String()+":7", inPool(&rdmacm.Config{PD: pd}))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "Config.PD is not of the connection's device: allocate it on the device from rdmacm.Devices or Listener.Device")
	var refused *ibverbs.ArgumentError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "rdma_create_qp", refused.Op)
	require.NoError(t, pd.Close())
	require.NoError(t, device.Close())
}

// Where one end allows no reads and atomics, they are refused instead of
// waiting for ever. Other transfers go on.
func TestReadsWithoutDepth(t *testing.T) {
	d := needDevice(t)
	for _, depths := range [][2]int{{-1, 0}, {0, -1}, {-1, -1}} {
		for _, mode := range modes {
			client, server := connect(t, d.IPv4,
				&rdmacm.Config{ReadDepth: depths[0], Queues: manual(mode.manualClient)},
				&rdmacm.Config{ReadDepth: depths[1], Queues: manual(mode.manualServer)})
			here, there := alloc(t, client, 8), alloc(t, server, 8)
			ctx := bounded(t)
			for _, err := range []error{
				client.Read(ctx, here.All(), there.Remote()), server.Read(ctx, there.All(), here.Remote()),
				client.FetchAdd(ctx, there.Remote(), 1, here.All()), client.CompareSwap(ctx, there.Remote(), 0, 1, here.All()),
			} {
				require.ErrorIs(t, err, syscall.EINVAL)
				require.ErrorContains(t, err, "ReadDepth")
			}
			require.NoError(t, client.Write(ctx, there.Remote(), here.All()))
		}
	}
}

func TestReadDepth(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct{ depth, want int }{{1, 1}, {4, 4}, {-1, 0}} {
		t.Run(fmt.Sprint(tt.depth), func(t *testing.T) {
			d.Have(t, testdevice.Reads(tt.want))
			ctx := bounded(t)
			ln := listenOn(t, d.IPv4)
			result := acceptOne(ctx, ln, nil)
			client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{ReadDepth: tt.depth}))
			require.NoError(t, err)
			server := <-result
			require.NoError(t, server.err)
			require.EqualValues(t, tt.want, server.req.Event().ResponderResources)
			require.EqualValues(t, tt.want, server.req.Event().InitiatorDepth)
			require.NoError(t, client.Close())
			require.NoError(t, server.conn.Close())
		})
	}
}

func TestManyConnectionsThroughOneListener(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	stop := serve(t, ln)
	for range 50 {
		conn, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	stop()

	const atOnce = 20
	var servers sync.WaitGroup
	ctx := bounded(t)
	conns := make(chan *rdmacm.Conn, 2*atOnce)
	results := make(chan error)
	for range atOnce {
		servers.Go(func() {
			a := <-acceptOne(ctx, ln, nil)
			if a.err != nil {
				t.Error(a.err)
				return
			}
			conns <- a.conn
		})
		each(results, func() error {
			conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
			if err == nil {
				conns <- conn
			}
			return err
		})
	}
	for range atOnce {
		require.NoError(t, <-results)
	}
	servers.Wait()
	close(conns)
	var closing sync.WaitGroup
	for conn := range conns {
		closing.Go(func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
}

// The settings of each end's queue pair come from the end that
// docs/guide/connections.md names.
func TestWhoseSettingRules(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Reads(16), testdevice.InfiniBand, testdevice.Queries)
	const (
		tick  = 4096 * time.Nanosecond
		timer = 640 * time.Microsecond
	)
	type rules struct {
		RetryCount, RNRRetry             int
		MinRNRTimer, Timeout             time.Duration // no Timeout: the system's
		MaxReadAtomic, MaxDestReadAtomic int
		TOS                              uint8
	}
	for name, tt := range map[string]struct {
		dialer               rdmacm.Dialer
		dialing, accepting   rdmacm.Config
		wantDialer, wantPeer rules
	}{
		"defaults": {
			wantDialer: rules{6, 7, timer, 0, 16, 16, 0},
			wantPeer:   rules{6, 7, timer, 0, 16, 16, 0},
		},
		"of the dialer": {
			dialer: rdmacm.Dialer{TOS: 0x28},
			dialing: rdmacm.Config{
				RetryCount: 3, PeerRNRRetryCount: 2, MinRNRTimer: 10 * time.Millisecond, AckTimeout: time.Second, ReadDepth: 4,
			},
			wantDialer: rules{3, 7, 10240 * time.Microsecond, tick << 18, 4, 4, 0x28},
			wantPeer:   rules{3, 2, timer, tick << 18, 4, 4, 0x28},
		},
		"of the accepting end": {
			accepting: rdmacm.Config{
				RetryCount: 3, PeerRNRRetryCount: 2, MinRNRTimer: 10 * time.Millisecond, AckTimeout: time.Millisecond, ReadDepth: 4,
			},
			wantDialer: rules{6, 2, timer, 0, 4, 4, 0},
			wantPeer:   rules{3, 7, 10240 * time.Microsecond, tick << 8, 4, 4, 0},
		},
		"of both": {
			dialing: rdmacm.Config{
				RetryCount: 2, PeerRNRRetryCount: -1, MinRNRTimer: time.Nanosecond, AckTimeout: time.Second, ReadDepth: -1,
			},
			accepting: rdmacm.Config{
				RetryCount: 7, PeerRNRRetryCount: 3, MinRNRTimer: 600 * time.Millisecond, AckTimeout: time.Minute, ReadDepth: 2,
			},
			wantDialer: rules{2, 3, 10 * time.Microsecond, tick << 18, 0, 0, 0},
			wantPeer:   rules{2, 0, 655360 * time.Microsecond, tick << 24, 0, 0, 0},
		},
	} {
		for _, mode := range modes {
			t.Run(name+"/"+mode.name, func(t *testing.T) {
				ctx := bounded(t)
				dialing, accepting := tt.dialing, tt.accepting
				dialing.Queues, accepting.Queues = manual(mode.manualClient), manual(mode.manualServer)
				ln := listenOn(t, d.IPv4)
				result := acceptOne(ctx, ln, &accepting)
				conn, err := dialWith(ctx, tt.dialer, ln.Addr().String(), &dialing)
				require.NoError(t, err)
				defer conn.Close()
				a := <-result
				require.NoError(t, a.err)
				defer a.conn.Close()
				for end, c := range map[string]struct {
					conn *rdmacm.Conn
					want rules
				}{"dialer": {conn, tt.wantDialer}, "accepting end": {a.conn, tt.wantPeer}} {
					attr, err := c.conn.QP().Query()
					require.NoError(t, err)
					got := rules{
						attr.RetryCount, attr.RNRRetryCount, attr.MinRNRTimer, attr.Timeout,
						attr.MaxReadAtomic, attr.MaxDestReadAtomic, attr.Path.TrafficClass,
					}
					if c.want.Timeout == 0 {
						t.Logf("%s: the system's timeout is %v", end, got.Timeout)
						got.Timeout = 0
					}
					require.Equal(t, c.want, got, end)
				}
			})
		}
	}
}

func TestMinRNRTimerLimits(t *testing.T) {
	d := needDevice(t)
	for _, timer := range []time.Duration{-1, 655361 * time.Microsecond} {
		_, err := rdmacm.Dial(bounded(t), d.IPv4.String()+":7", inPool(&rdmacm.Config{MinRNRTimer: timer}))
		require.ErrorContains(t, err, "rdma_create_qp: Config.MinRNRTimer")
		require.ErrorContains(t, err, "Config.MinRNRTimer is "+timer.String()+", not from 0 to 655.36ms")
	}
}

// eachDirection calls f for each direction, with the indexes of the sending and
// the other end. The dialer has index 0.
func eachDirection(t *testing.T, f func(t *testing.T, from, to int)) {
	for from, name := range []string{"from the dialer", "from the accepting end"} {
		t.Run(name, func(t *testing.T) { f(t, from, 1-from) })
	}
}

// speakFirst sends a message from the dialer. On iWARP, the accepting end may
// not send before.
func speakFirst(t *testing.T, client, server *rdmacm.Conn) {
	t.Helper()
	received, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(bounded(t)))
	_, err = received.Wait(bounded(t))
	require.NoError(t, err)
}

// The end without a receive decides how often the peer repeats a message.
func TestPeerRNRRetryCount(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	eachDirection(t, func(t *testing.T, from, to int) {
		configs := [2]rdmacm.Config{}
		configs[to].PeerRNRRetryCount = -1
		client, server := connect(t, d.IPv4, &configs[0], &configs[1])
		speakFirst(t, client, server)
		ends := [2]*rdmacm.Conn{client, server}
		err := ends[from].Send(bounded(t))
		failed, ok := errors.AsType[*ibverbs.WCError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, ibverbs.WCRNRRetryExceeded, failed.Status)
	})
	// The setting of the sending end has no effect.
	eachDirection(t, func(t *testing.T, from, to int) {
		configs := [2]rdmacm.Config{}
		configs[from].PeerRNRRetryCount = -1
		client, server := connect(t, d.IPv4, &configs[0], &configs[1])
		speakFirst(t, client, server)
		ends := [2]*rdmacm.Conn{client, server}
		sent := inBackground(func() error { return ends[from].Send(bounded(t)) })
		select {
		case err := <-sent:
			require.Fail(t, "there was no receive", "%v", err)
		case <-time.After(20 * time.Millisecond):
		}
		_, err := ends[to].Recv(bounded(t))
		require.NoError(t, err)
		require.NoError(t, <-sent)
	})
}

// A message that comes before its receive is repeated after the time that the
// end without the receive has set.
func TestLateReceive(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	eachDirection(t, func(t *testing.T, from, to int) {
		for _, timer := range []time.Duration{0, 640 * time.Microsecond, 491520 * time.Microsecond} {
			t.Run(timer.String(), func(t *testing.T) {
				configs := [2]rdmacm.Config{}
				configs[to].MinRNRTimer = timer
				client, server := connect(t, d.IPv4, &configs[0], &configs[1])
				speakFirst(t, client, server)
				ends := [2]*rdmacm.Conn{client, server}
				late := func(pause time.Duration) time.Duration {
					start := time.Now()
					sent := inBackground(func() error { return ends[from].Send(bounded(t)) })
					time.Sleep(pause) // how late it is
					_, err := ends[to].Recv(bounded(t))
					require.NoError(t, err)
					require.NoError(t, <-sent)
					return time.Since(start)
				}
				pause := 20 * time.Millisecond
				took := late(pause)
				for tries := 20; timer > 400*time.Millisecond && took < timer && d.Has(t, testdevice.InfiniBand); tries-- {
					require.Positive(t, tries, "the sender has not waited")
					pause = min(2*pause, timer/2)
					took = late(pause) // a busy machine may have been later with the message
				}
				t.Logf("with %v: %v", timer, took)
			})
		}
	})
}

// More messages than receives are sent at once.
func TestBurst(t *testing.T) {
	const messages = 200
	d := needDevice(t)
	eachDirection(t, func(t *testing.T, from, to int) {
		ctx := bounded(t)
		var in *rdmacm.Receiver
		configs := [2]rdmacm.Config{{SendQueue: messages}, {SendQueue: messages}}
		configs[to].Setup = func(c *rdmacm.Conn) (err error) {
			in, err = c.NewReceiver(8)
			return err
		}
		client, server := connect(t, d.IPv4, &configs[0], &configs[1])
		if to == 0 {
			speakFirst(t, client, server)
		}
		sender := [2]*rdmacm.Conn{client, server}[from]
		mr := alloc(t, sender, messages)
		start := time.Now()
		sent := make(chan error, messages)
		for i := range messages {
			mr.Bytes()[i] = byte(i)
			go func() { sent <- sender.Send(ctx, mr.Sub(i, 1)) }()
		}
		seen := map[byte]bool{}
		for range messages {
			m, err := in.Next(ctx)
			require.NoError(t, err)
			seen[m.Data[0]] = true
		}
		for range messages {
			require.NoError(t, <-sent)
		}
		t.Logf("%d messages: %v", messages, time.Since(start))
		require.Len(t, seen, messages)
	})
}
