// SPDX-License-Identifier: Apache-2.0

// Mckey sends datagrams to a multicast group over RDMA. It works together with
// rdma-core's mckey.
//
// Members join the group and wait for a number of messages. The sender joins,
// too, and sends that number.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// settle is how long a sender waits after joining, as in C, because
// InfiniBand's subnet manager may still be setting up switches.
const settle = 3 * time.Second

// options holds the values of the flags.
type options struct {
	group, unmapped, bind    string
	sender, sendOnly         bool
	noLoopback               bool
	connections, count, size int
	space                    uint16
}

func main() { os.Exit(new(options).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{connections: 1, count: 10, size: 100, space: uint16(rdmacm.PortSpaceUDP)}
	return &program.Program{
		Name: "mckey", Flags: o.flags, Run: o.run,
		Usage: `
mckey -m group [-b addr] [-s] [-c connections] [-C count] [-S size] [-ol]
mckey -M gid -b addr [-s] [-c connections] [-C count] [-S size] [-ol]`,
		Text: `
Joins a multicast group. With -s it sends messages to the group, otherwise it
waits for the same number of messages. rdma-core's mckey may be a member too. If
a message is lost, mckey waits for it until it is interrupted.

Exit status: 0 on success; 1 if something failed, or if the arguments are
wrong; 130 if interrupted.

Example: mckey -m 239.1.2.3 -b 192.0.2.1   and   mckey -m 239.1.2.3 -b 192.0.2.1 -s`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.group, "group", "m", "", "`address` of the group")
	f.StringVarP(&o.unmapped, "unmapped", "M", "", "`GID` of the group, instead of -m (needs -b)")
	f.BoolVarP(&o.sender, "sender", "s", false, "send")
	f.StringVarP(&o.bind, "bind", "b", "", "`address` of the interface to join on (default: the one with a route to the group)")
	f.Number(&o.connections, "connections", "c", 0, peers.MaxCount, "`number` of queue pairs that join")
	f.Number(&o.count, "count", "C", 0, peers.MaxCount, "`number` of messages for each queue pair")
	f.Number(&o.size, "size", "S", 0, peers.MaxSize, "`bytes` of each message, up to the port's MTU (0: no messages)")
	f.Uint16VarP(&o.space, "port-space", "p", o.space, "port space `number`: 0x111 (273) for UDP, 2 for IPoIB groups")
	f.BoolVarP(&o.sendOnly, "send-only", "o", false, "join only to send")
	f.BoolVarP(&o.noLoopback, "no-loopback", "l", false, "keep a queue pair's own messages from coming back to it")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	switch {
	case (o.group == "") == (o.unmapped == ""):
		return program.Misuse("either -m or -M must be given")
	case o.unmapped != "" && o.bind == "":
		return program.Misuse("-M needs -b, the address of an interface")
	}
	if o.size == 0 {
		o.count = 0
	}
	kind := "server" // C's word for a member
	if o.sender {
		kind = "client"
	}
	out.Printf("mckey: starting %s\n", kind)
	if err := o.exchange(ctx, out); err != nil {
		return err
	}
	out.Printf("test complete\nreturn status 0\n")
	return nil
}

func (o *options) exchange(ctx context.Context, out program.Output) (err error) {
	out.Printf("mckey: joining\n")
	join, err := o.joiner(ctx)
	if err != nil {
		return err
	}
	var ends []*peers.End
	for range o.connections {
		e := &peers.End{Count: o.count, Size: o.size}
		setup := e.SetupReceives
		if o.sender {
			setup = e.Setup
		}
		conn, err := join(&rdmacm.GroupConfig{
			LocalAddr: o.bind, SendOnly: o.sendOnly, NoLoopback: o.noLoopback, PortSpace: rdmacm.PortSpace(o.space),
			Config: rdmacm.DatagramConfig{RecvQueue: o.count, Setup: setup},
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		path := conn.Peer().Path
		out.Printf("mckey: joined dgid: %v mlid 0x%x sl %d\n", netip.AddrFrom16(path.DGID), path.DLID, path.SL)
		ends = append(ends, e)
	}
	if o.count == 0 {
		return nil
	}
	transfer := receive
	if o.sender {
		transfer = send
	}
	if err := transfer(ctx, out, ends); err != nil {
		return err
	}
	out.Printf("data transfers complete\n")
	return nil
}

// joiner returns a function that joins the group.
func (o *options) joiner(ctx context.Context) (func(*rdmacm.GroupConfig) (*rdmacm.DatagramConn, error), error) {
	if o.unmapped != "" {
		gid, err := ibverbs.ParseGID(o.unmapped)
		return func(c *rdmacm.GroupConfig) (*rdmacm.DatagramConn, error) {
			return rdmacm.JoinGroupIB(ctx, rdmacm.IBAddr{GID: gid}, c)
		}, err
	}
	group, err := lookup(ctx, o.group)
	return func(c *rdmacm.GroupConfig) (*rdmacm.DatagramConn, error) { return rdmacm.JoinGroup(ctx, group, c) }, err
}

// lookup returns the address of a group. group is an address or a name.
func lookup(ctx context.Context, group string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(group); err == nil {
		return addr, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", group)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up the group: %w", err)
	}
	return addrs[0], nil
}

func send(ctx context.Context, out program.Output, ends []*peers.End) error {
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	out.Printf("initiating data transfers\n")
	for _, e := range ends {
		if err := e.Send(ctx, e.Conn.Peer()); err != nil {
			return err
		}
	}
	return nil
}

func receive(ctx context.Context, out program.Output, ends []*peers.End) error {
	out.Printf("receiving data transfers\n")
	for _, e := range ends {
		if _, err := e.Receive(ctx); err != nil {
			return err
		}
	}
	return nil
}
