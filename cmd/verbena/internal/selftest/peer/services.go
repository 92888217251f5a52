// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

const (
	// MessageSize is the length of the longest message to a server, in bytes.
	MessageSize = 16 << 10
	// MemorySize is how many bytes a server lends.
	MemorySize = 1 << 20

	receives = 4 // that a server has posted on a connection
)

// The first byte of a message to the service Memory.
const (
	back byte = iota // send the message back
	sum              // send the checksum of a range: offset and length follow
)

// full is what a client may do with a server's memory.
const full = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead

// serve serves a connection. An error means that the request was not answered.
func (v *visit) serve(request *rdmacm.Request, g greeting) error {
	local := netip.AddrPortFrom(request.LocalAddr().Addr(), 0).String()
	config := v.config()
	switch g.service {
	case Refused:
		return request.Reject(Pattern(int(g.ask)))
	case Told:
		ev := request.Event()
		config.PrivateData = append(Seen{
			ev.QPNum, byte(ev.ResponderResources), byte(ev.InitiatorDepth), byte(ev.RetryCount), byte(ev.RNRRetryCount), request.RemoteAddr().Port(),
		}.bytes(), Pattern(int(g.ask))...)
		return v.accept(request, config, untilEnd)
	case Echo:
		return v.accept(request, config, v.answer(nil))
	case Ends:
		return v.accept(request, config, func(ctx context.Context, c *rdmacm.Conn) error {
			_, err := c.Receive(ctx)
			return err
		})
	case Memory:
		return v.lend(request, config)
	case Unused:
		ln, err := rdmacm.Listen(v.ctx, local, nil)
		if err != nil {
			return err
		}
		config.PrivateData = port(ln.Addr())
		if err := ln.Close(); err != nil {
			return err
		}
		return v.accept(request, config, untilEnd)
	}
	start := map[Service]func(*visit, *rdmacm.Request, string, byte) (service, error){
		Sockets: (*visit).sockets, Datagrams: (*visit).datagrams, Transfers: (*visit).transfers, Figures: (*visit).figures,
	}[g.service]
	if start == nil {
		return fmt.Errorf("there is no service %d", g.service)
	}
	s, err := start(v, request, local, g.ask)
	if err != nil {
		return err
	}
	config.PrivateData = port(s.addr)
	ctx, cancel := context.WithCancel(v.ctx)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()
	err = v.accept(request, config, untilEnd)
	cancel()
	_ = s.close() // what it means to the client, the client sees
	<-done
	return err
}

// service is something that listens on a port of its own.
type service struct {
	addr  netip.AddrPort
	run   func(context.Context) // until the context has ended, or close was called
	close func() error
}

func port(addr netip.AddrPort) []byte { return binary.BigEndian.AppendUint16(nil, addr.Port()) }

// config returns the config of a connection.
func (v *visit) config() *rdmacm.Config {
	return &rdmacm.Config{SendQueue: receives, RecvQueue: receives, MessageSize: MessageSize, KeepAlive: vanished}
}

// accept accepts a connection, and ends it when f returns. It reports no error:
// the client sees it, too.
func (v *visit) accept(request *rdmacm.Request, config *rdmacm.Config, f func(context.Context, *rdmacm.Conn) error) error {
	conn, err := request.Accept(v.ctx, config)
	if err != nil {
		return nil // the request is over
	}
	_ = f(v.ctx, conn)
	_ = conn.Close()
	return nil
}

func untilEnd(ctx context.Context, c *rdmacm.Conn) error { return c.Wait(ctx) }

// answer returns the function that sends messages back, and with memory,
// checksums.
func (v *visit) answer(memory func() []byte) func(ctx context.Context, c *rdmacm.Conn) error {
	return func(ctx context.Context, c *rdmacm.Conn) error {
		out, err := c.Alloc(MessageSize, 0)
		if err != nil {
			return err
		}
		for m, err := range c.Messages(ctx) {
			if err != nil {
				return err
			}
			n := copy(out.Bytes(), m.Data)
			if memory != nil && n == 9 && m.Data[0] == sum {
				from, length := binary.BigEndian.Uint32(m.Data[1:]), binary.BigEndian.Uint32(m.Data[5:])
				if uint64(from)+uint64(length) > MemorySize {
					return errors.New("the range is not in the memory")
				}
				n = len(binary.BigEndian.AppendUint32(out.Bytes()[:0], crc32.ChecksumIEEE(memory()[from:from+length])))
			}
			if err := c.Send(ctx, out.Sub(0, n)); err != nil {
				return err
			}
		}
		return nil
	}
}

// lend serves memory.
func (v *visit) lend(request *rdmacm.Request, config *rdmacm.Config) error {
	var mr *ibverbs.MR
	config.Setup = func(c *rdmacm.Conn) (err error) {
		access := full
		if attr, err := c.PD().Device().QueryDevice(); err == nil && attr.AtomicCap != 0 {
			access |= ibverbs.AccessRemoteAtomic
		}
		if mr, err = c.Alloc(MemorySize, access); err != nil {
			return err
		}
		r := mr.Remote()
		b := binary.BigEndian.AppendUint64(nil, r.Addr)
		return c.SetPrivateData(binary.BigEndian.AppendUint32(b, r.RKey))
	}
	return v.accept(request, config, func(ctx context.Context, c *rdmacm.Conn) error {
		return v.answer(mr.Bytes)(ctx, c)
	})
}

// datagrams listens for requests of datagrams, and sends datagrams back.
func (v *visit) datagrams(_ *rdmacm.Request, local string, _ byte) (service, error) {
	ln, err := rdmacm.ListenDatagram(v.ctx, local, nil)
	if err != nil {
		return service{}, err
	}
	run := func(ctx context.Context) {
		for {
			request, err := ln.Accept(ctx)
			if err != nil {
				return // the service ends
			}
			g, err := parse(request.PrivateData())
			switch {
			case err != nil || g.token != v.token:
				_ = request.Reject(nil)
			case g.service == Refused:
				_ = request.Reject(Pattern(int(g.ask)))
			default:
				v.echo(ctx, request, Pattern(int(g.ask)))
			}
		}
	}
	return service{ln.Addr(), run, ln.Close}, nil
}

// echo sends the datagrams of a client back, until the service ends or the next
// client asks.
func (v *visit) echo(ctx context.Context, request *rdmacm.DatagramRequest, answer []byte) {
	var in *rdmacm.Receiver
	c, err := request.Accept(ctx, &rdmacm.DatagramConfig{PrivateData: answer, Setup: func(c *rdmacm.DatagramConn) (err error) {
		in, err = c.NewReceiver()
		return err
	}})
	if err != nil {
		return
	}
	v.connections.Go(func() {
		defer c.Close()
		out, err := c.Alloc(c.MTU(), 0)
		for err == nil {
			var m *rdmacm.Message
			if m, err = in.Next(ctx); err != nil {
				return
			}
			n := copy(out.Bytes(), m.Data)
			to, failed := m.Sender()
			if failed == nil && n > 0 {
				err = c.SendTo(ctx, to, out.Sub(0, n))
			}
		}
	})
}

// freePort returns a TCP port that is not in use.
func freePort(host string) (int, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, err
	}
	_, text, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	return n, errors.Join(err, ln.Close())
}
