// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// The connection is the only one of its process. Its callback calls every
// method of the connection, and opens and closes other connections.
func TestCallbacksCallEverything(t *testing.T) {
	d := needDevice(t)
	testdevice.NeedsProcesses(t)
	for name := range callers {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "pool") {
				d.Have(t, testdevice.SRQs)
			}
			ln := listenOn(t, d.IPv4)
			ctx, cancel := context.WithCancel(bounded(t))
			served := inBackground(func() error { return ln.Serve(ctx, obey) })
			child := process.Start(t, process.Command(t, "caller", name, ln.Addr().String()))
			if at, ok := strings.CutPrefix(child.Line(), "listens at "); ok {
				conn, err := rdmacm.Dial(ctx, at, inPool(nil))
				if err == nil { // else the callback was faster
					_ = conn.Wait(ctx)
					require.NoError(t, conn.Close())
				}
			}
			require.Zero(t, child.Wait(), name)
			cancel()
			require.NoError(t, <-served)
		})
	}
}

// obey serves a caller: a message tells it to close the connection.
func obey(ctx context.Context, req *rdmacm.Request) {
	config := &rdmacm.Config{Setup: func(c *rdmacm.Conn) error {
		mr, err := c.Alloc(64, ibverbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		r, err := c.PostRecv(mr.All())
		if err != nil {
			return err
		}
		go func() {
			_, _ = r.Wait(ctx)
			_ = c.Close()
		}()
		return nil
	}}
	if conn, err := req.Accept(ctx, inPool(config)); err == nil {
		_ = conn.Wait(ctx)
		_ = conn.Close()
	}
}

// caller is a process that calls every method from a callback.
type caller struct {
	ctx  context.Context
	peer string
	left chan error // the callback's result

	mu   sync.Mutex
	conn *rdmacm.Conn
	ends []func() // what is left to close
}

// callers make connections whose callback calls caller.everything.
var callers = map[string]func(c *caller) error{
	"Setup": func(c *caller) error {
		return c.dial(&rdmacm.Config{Setup: c.callIn})
	},
	"Setup of a pool": func(c *caller) error {
		return c.pooled(func(pool *rdmacm.Pool) error { return c.dial(&rdmacm.Config{Queues: pool, Setup: c.callIn}) })
	},
	"Prepare": func(c *caller) error {
		o := newOwn()
		c.ends = append(c.ends, func() { _, _ = o.cq.Close(), o.channel.Close() })
		return c.dial(&rdmacm.Config{Queues: &rdmacm.PreparedQP{Prepare: func(conn *rdmacm.Conn) (*ibverbs.QP, error) {
			qp, err := o.prepare(conn)
			return qp, errors.Join(err, c.callIn(conn))
		}}})
	},
	"Prepare before the queue pair": func(c *caller) error {
		return c.dial(&rdmacm.Config{Queues: &rdmacm.PreparedQP{Prepare: func(conn *rdmacm.Conn) (*ibverbs.QP, error) {
			return nil, c.callIn(conn)
		}}})
	},
	"Flushed": func(c *caller) error {
		o := newOwn()
		c.ends = append(c.ends, func() { _, _ = o.cq.Close(), o.channel.Close() })
		err := c.dial(&rdmacm.Config{Queues: &rdmacm.PreparedQP{Prepare: o.prepare, Flushed: func() { c.call(c.made()) }}})
		return errors.Join(err, c.made().Close())
	},
	"Ended, closed here": func(c *caller) error {
		return errors.Join(c.dial(&rdmacm.Config{Ended: c.ended}), c.made().Close())
	},
	"Ended, closed by the peer": func(c *caller) error {
		return errors.Join(c.dial(&rdmacm.Config{Ended: c.ended}), c.askToClose())
	},
	"Ended, closed by the peer, does not linger": func(c *caller) error {
		return errors.Join(c.dial(&rdmacm.Config{Ended: c.ended, Linger: -1}), c.askToClose())
	},
	"Ended, failed": func(c *caller) error {
		return errors.Join(c.dial(&rdmacm.Config{Ended: c.ended}), c.fail())
	},
	"Ended, failed and no goroutine waits": func(c *caller) error {
		err := c.dial(&rdmacm.Config{Ended: c.ended})
		return errors.Join(err, c.post())
	},
	"Ended of a pool, closed by the peer": func(c *caller) error {
		return c.pooled(func(pool *rdmacm.Pool) error {
			return errors.Join(c.dial(&rdmacm.Config{Queues: pool, Ended: c.ended}), c.askToClose())
		})
	},
	"Ended of a pool, failed": func(c *caller) error {
		return c.pooled(func(pool *rdmacm.Pool) error {
			return errors.Join(c.dial(&rdmacm.Config{Queues: pool, Ended: c.ended}), c.fail())
		})
	},
	"Ended in Completed": func(c *caller) error {
		cq, err := c.queue()
		if err != nil {
			return err
		}
		config := &rdmacm.Config{Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq}, KeepAlive: -1, Ended: c.ended}
		if err := errors.Join(c.dial(config), c.post()); err != nil {
			return err
		}
		go func() { // until the queue is closed
			for {
				wc, err := cq.WaitOne(c.ctx)
				if err != nil {
					return
				}
				c.made().Completed(&wc)
			}
		}()
		return nil
	},
	"Logger, connected": func(c *caller) error {
		return c.dial(&rdmacm.Config{Setup: c.keep, Logger: c.logger("rdma connected")})
	},
	"Logger, not connected": func(c *caller) error {
		broken := errors.New("broken")
		err := c.dial(&rdmacm.Config{
			Setup:  func(conn *rdmacm.Conn) error { return errors.Join(broken, c.keep(conn)) },
			Logger: c.logger("rdma dial failed"),
		})
		if !errors.Is(err, broken) {
			return err
		}
		return nil
	},
	"Logger, closed here": func(c *caller) error {
		return errors.Join(c.dial(&rdmacm.Config{Logger: c.logger("rdma connection ended")}), c.made().Close())
	},
	"Logger, closed by the peer": func(c *caller) error {
		return errors.Join(c.dial(&rdmacm.Config{Logger: c.logger("rdma connection ended")}), c.askToClose())
	},
	"Logger, accepted": func(c *caller) error {
		return c.serve(func(ctx context.Context, ln *rdmacm.Listener, req *rdmacm.Request) {
			log := &logs{message: "rdma accepted", call: func() { c.left <- errors.Join(c.everything(c.made()), ln.Close()) }}
			_, _ = req.Accept(ctx, inPool(&rdmacm.Config{Setup: c.keep, Logger: slog.New(log)}))
		})
	},
	"Serve": func(c *caller) error {
		return c.serve(func(ctx context.Context, ln *rdmacm.Listener, req *rdmacm.Request) {
			conn, err := req.Accept(ctx, inPool(nil))
			if err == nil {
				err = c.everything(conn)
			}
			ended, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, acceptErr := ln.Accept(ended)
			if acceptErr == nil {
				err = errors.Join(err, errors.New("another request"))
			}
			err = errors.Join(err, ln.Serve(ended, func(context.Context, *rdmacm.Request) {}))
			_, deviceErr := ln.Device()
			c.left <- errors.Join(err, deviceErr, ln.Close())
		})
	},
}

// callFrom is the program of a caller. Its arguments are the name of the
// callback and the address of the peer. It fails if a call in the callback does
// not return.
func callFrom(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	c := &caller{ctx: ctx, peer: args[1], left: make(chan error, 1)}
	began := make(chan error, 1)
	go func() {
		if !strings.Contains(args[0], "accepted") && args[0] != "Serve" {
			fmt.Println("dials")
		}
		began <- callers[args[0]](c)
	}()
	for _, step := range []struct {
		what string
		done <-chan error
	}{{"callback", c.left}, {"call that it came from", began}} {
		select {
		case err := <-step.done:
			if err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
		case <-ctx.Done():
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("the %s does not return:\n%s", step.what, stacks[:runtime.Stack(stacks, true)])
		}
	}
	for _, end := range c.ends {
		end()
	}
	var open []string
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		if open = ibverbs.OpenObjects(); len(open) == 0 {
			return nil
		}
	}
	return fmt.Errorf("not closed: %v", open)
}

func (c *caller) dial(config *rdmacm.Config) error {
	conn, err := rdmacm.Dial(c.ctx, c.peer, inPool(config))
	if err == nil {
		_ = c.keep(conn)
	}
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EBUSY) { // by the callback
		err = nil
	}
	return err
}

// keep stores the connection for a callback that does not get it as an
// argument.
func (c *caller) keep(conn *rdmacm.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return nil
}

// made waits until there is a connection and returns it.
func (c *caller) made() *rdmacm.Conn {
	for {
		c.mu.Lock()
		conn := c.conn
		c.mu.Unlock()
		if conn != nil || c.ctx.Err() != nil {
			return conn
		}
		runtime.Gosched()
	}
}

func (c *caller) call(conn *rdmacm.Conn) { c.left <- c.everything(conn) }

func (c *caller) callIn(conn *rdmacm.Conn) error { c.call(conn); return nil }

func (c *caller) ended(error) { c.call(c.made()) }

func (c *caller) logger(message string) *slog.Logger {
	return slog.New(&logs{message: message, call: func() { c.call(c.made()) }})
}

// logs is a log handler that calls a function for the first record with a given
// message.
type logs struct {
	message string
	once    sync.Once
	call    func()
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logs) WithGroup(string) slog.Handler            { return l }

func (l *logs) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		l.once.Do(l.call)
	}
	return nil
}

// askToClose sends a message on which the peer closes the connection.
func (c *caller) askToClose() error {
	// The peer may be gone before its acknowledgement arrives.
	_ = c.made().Send(c.ctx)
	return nil
}

// fail makes a transfer fail, which ends the connection.
func (c *caller) fail() error {
	mr, err := c.made().Alloc(8, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	if c.made().Write(c.ctx, ibverbs.RemoteBuffer{RKey: 1, Len: 8}, mr.All()) == nil {
		return errors.New("a write to memory that the peer has not")
	}
	return nil
}

// post posts a transfer that fails, and does not wait for it.
func (c *caller) post() error {
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		return err
	}
	mr, err := c.made().Alloc(8, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	if err := batch.Write(0, ibverbs.RemoteBuffer{RKey: 1, Len: 8}, 0, mr.All()); err != nil {
		return err
	}
	return c.made().Post(c.ctx, new(rdmacm.Transfer), batch)
}

// pooled calls f with a pool and then closes the pool.
func (c *caller) pooled(f func(*rdmacm.Pool) error) error {
	return f(&rdmacm.Pool{Sends: 64, Receives: 16})
}

// queue returns a completion queue that is closed at the end.
func (c *caller) queue() (*ibverbs.CQ, error) {
	devices, err := rdmacm.Devices()
	if err != nil {
		return nil, err
	}
	channel, err := devices[0].CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := devices[0].CreateCQ(ibverbs.CQConfig{CompQueue: 64, Channel: channel})
	c.ends = append(c.ends, func() { _, _ = cq.Close(), channel.Close() })
	return cq, err
}

// serve listens, prints the address, and serves one request.
func (c *caller) serve(handle func(ctx context.Context, ln *rdmacm.Listener, req *rdmacm.Request)) error {
	at, err := netip.ParseAddrPort(c.peer)
	if err != nil {
		return err
	}
	ln, err := rdmacm.Listen(c.ctx, netip.AddrPortFrom(at.Addr(), 0).String(), nil)
	if err != nil {
		return err
	}
	fmt.Println("listens at", ln.Addr())
	err = ln.Serve(c.ctx, func(ctx context.Context, req *rdmacm.Request) { handle(ctx, ln, req) })
	if errors.Is(err, os.ErrClosed) { // by the callback
		err = nil
	}
	return err
}

// everything calls every method of a connection, whatever its state, and opens
// and closes other connections. The calls may fail, but they must return.
func (c *caller) everything(conn *rdmacm.Conn) error {
	if conn == nil {
		return errors.New("there is no connection")
	}
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Millisecond)
		context.AfterFunc(ctx, cancel)
		return ctx
	}
	mr, err := conn.Alloc(64, ibverbs.AccessLocalWrite)
	segment := ibverbs.InlineBytes(nil)
	if err == nil {
		segment = mr.All()
	}
	remote := ibverbs.RemoteBuffer{RKey: 1, Len: 8}
	calls := map[string]func(){
		"Alloc":       func() { _, _ = conn.Alloc(8, 0) },
		"CompareSwap": func() { _ = conn.CompareSwap(brief(), remote, 0, 1, segment) },
		"Completed":   func() { conn.Completed(new(ibverbs.WC)) },
		"Done":        func() { _ = conn.Done() },
		"Err":         func() { _ = conn.Err() },
		"FetchAdd":    func() { _ = conn.FetchAdd(brief(), remote, 1, segment) },
		"ID":          func() { _, _ = conn.ID().Device() },
		"LocalAddr":   func() { _ = conn.LocalAddr() },
		"Messages": func() {
			for range conn.Messages(brief()) {
				break
			}
		},
		"Internals":      func() { _ = conn.Internals() },
		"NewReceiver":    func() { _, _ = conn.NewReceiver(64) },
		"PD":             func() { _ = conn.PD().Device() },
		"PeerData":       func() { _ = conn.PeerData() },
		"Post":           func() { _ = conn.Post(brief(), nil, new(ibverbs.SendBatch)) },
		"PostRecv":       func() { _, _ = conn.PostRecv(segment) },
		"QP":             func() { _ = conn.QP() },
		"Read":           func() { _ = conn.Read(brief(), segment, remote) },
		"Receive":        func() { _, _ = conn.Receive(brief()) },
		"Recv":           func() { _, _ = conn.Recv(brief(), segment) },
		"RemoteAddr":     func() { _ = conn.RemoteAddr() },
		"Send":           func() { _ = conn.Send(brief(), segment) },
		"SendImm":        func() { _ = conn.SendImm(brief(), 1, segment) },
		"SetPrivateData": func() { _ = conn.SetPrivateData(nil) },
		"Wait":           func() { _ = conn.Wait(brief()) },
		"Write":          func() { _ = conn.Write(brief(), remote, segment) },
		"WriteImm":       func() { _ = conn.WriteImm(brief(), remote, 1, segment) },
	}
	for method := range reflect.TypeFor[*rdmacm.Conn]().Methods() {
		if method.Name == "Close" || method.Name == "Shutdown" {
			continue
		}
		f := calls[method.Name]
		if f == nil {
			return fmt.Errorf("the test does not know Conn.%s", method.Name)
		}
		f()
	}
	if err := c.others(); err != nil {
		return err
	}
	_ = conn.Close()
	_ = conn.Shutdown(c.ctx)
	return c.ctx.Err()
}

// others connects to the peer and listens. The program may have no connection
// any more.
func (c *caller) others() error {
	other, err := rdmacm.Dial(c.ctx, c.peer, inPool(nil))
	if err != nil {
		return err
	}
	if err := other.Shutdown(c.ctx); err != nil {
		return err
	}
	at := netip.MustParseAddrPort(c.peer)
	ln, err := rdmacm.Listen(c.ctx, netip.AddrPortFrom(at.Addr(), 0).String(), nil)
	if err != nil {
		return err
	}
	return ln.Close()
}
