// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// patience is the maximum time for creating, using and ending a connection.
const patience = 20 * time.Second

// connection connects each port that has an address and a GID to itself.
func connection(ctx context.Context, m *machine) Finding {
	f := Finding{Status: OK}
	var all []string
	for d, p := range m.active() {
		addrs := m.addrs(d, p)
		if _, good := portGIDs(d, p); !good || len(addrs) == 0 {
			continue
		}
		addr := addrs[0].Addr().String()
		if err := connect(ctx, addr); err != nil {
			f.Status = Fail
			f.Remedy = whyNot(err)
			all = append(all, fmt.Sprintf("%s to itself at %s: %v", portName(d, p), addr, err))
			continue
		}
		all = append(all, fmt.Sprintf("%s to itself at %s: a message and an RDMA write arrived", portName(d, p), addr))
	}
	f.Found = strings.Join(all, "; ")
	return f
}

// whyNot returns what to do about a connection that failed with err.
func whyNot(err error) string {
	switch {
	case isAny(err, syscall.EMFILE, syscall.ENFILE):
		return moreFiles
	case errors.Is(err, syscall.ENOMEM):
		return "raise the limit on locked memory: ulimit -l"
	case isAny(err, context.DeadlineExceeded, syscall.EHOSTUNREACH, syscall.ETIMEDOUT, ibverbs.WCRetryExceeded):
		return "see the causes above; a firewall, or rules for routing, may keep packets from coming back"
	}
	return "see the causes above, and the kernel's messages: dmesg"
}

// end is one end of a connection.
type end struct {
	conn    *rdmacm.Conn
	memory  *ibverbs.MR     // the first half holds sent messages and what the peer writes; the second half is for receiving
	receive *rdmacm.Receive // the posted receive
}

const half = 64 // half is the number of bytes in one half of an end's memory.

func (e *end) config() *rdmacm.Config {
	return &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		if e.memory, err = c.Alloc(2*half, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err == nil {
			e.receive, err = c.PostRecv(e.memory.Sub(half, half))
		}
		return err
	}}
}

func (e *end) accept(ctx context.Context, ln *rdmacm.Listener) error {
	req, err := ln.Accept(ctx)
	if err == nil {
		e.conn, err = req.Accept(ctx, e.config())
	}
	return err
}

func (e *end) close() error {
	if e.conn == nil {
		return nil
	}
	return e.conn.Close()
}

// connect connects addr to itself and uses the connection.
func connect(ctx context.Context, addr string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ln, err := rdmacm.Listen(ctx, net.JoinHostPort(addr, "0"), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.Close()) }()
	var client, server end
	accepted := make(chan error, 1)
	go func() { accepted <- server.accept(ctx, ln) }()
	client.conn, err = (&rdmacm.Dialer{Config: *client.config(), LocalAddr: addr}).Dial(ctx, ln.Addr().String())
	if err != nil {
		cancel() // no other client will come
	}
	refused := <-accepted
	defer func() { err = errors.Join(err, client.close(), server.close()) }()
	switch {
	case refused != nil && !errors.Is(refused, context.Canceled):
		return refused // the cause of the other end's error
	case err != nil:
		return err
	}
	return exchange(ctx, &client, &server)
}

// exchange makes the client send a message, and the server write into the
// client's memory. The server's message follows the write, and so shows that
// the write has arrived.
func exchange(ctx context.Context, client, server *end) error {
	n := copy(client.memory.Bytes(), "a message")
	if err := client.conn.Send(ctx, client.memory.Sub(0, n)); err != nil {
		return err
	}
	if err := server.received(ctx, "a message"); err != nil {
		return err
	}
	n = copy(server.memory.Bytes(), "an RDMA write")
	if err := server.conn.Write(ctx, client.memory.Remote(), server.memory.Sub(0, n)); err != nil {
		return err
	}
	if err := server.conn.Send(ctx, server.memory.Sub(0, n)); err != nil {
		return err
	}
	if err := client.received(ctx, "an RDMA write"); err != nil {
		return err
	}
	if got := client.memory.Bytes()[:n]; string(got) != "an RDMA write" {
		return fmt.Errorf("an RDMA write arrived as %q", got)
	}
	return nil
}

// received waits for the message want.
func (e *end) received(ctx context.Context, want string) error {
	n, err := e.receive.Wait(ctx)
	if err != nil {
		return err
	}
	if got := e.memory.Bytes()[half:][:n]; string(got) != want {
		return fmt.Errorf("the message %q arrived as %q", want, got)
	}
	return nil
}
