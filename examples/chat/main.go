// SPDX-License-Identifier: Apache-2.0

// Chat sends each line of its input to all members of a multicast group, and
// prints what the others send. It exits at the end of its input.
//
//	chat -name north -local 192.0.2.1
//	chat -name south -local 192.0.2.2
//
// -local is an address of the network interface to use; without it, the
// system's route to the group determines the interface, if there is one. Lines
// may be lost.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("chat: ")
	group := flag.String("group", "239.255.71.71", "multicast `address` of the group")
	local := flag.String("local", "", "`address` of this host's interface")
	name := flag.String("name", "", "`name` that the others see before the lines")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: chat -name name [-local address] [-group address]")
		flag.PrintDefaults()
	}
	flag.Parse()
	address, err := netip.ParseAddr(*group)
	if err != nil || *name == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := chat(ctx, address, *local, *name); err != nil {
		log.Fatal(err)
	}
}

// chat stays in the group until standard input or ctx ends.
func chat(ctx context.Context, group netip.Addr, local, name string) error {
	var messages *rdmacm.Receiver
	conn, err := rdmacm.JoinGroup(ctx, group, &rdmacm.GroupConfig{
		LocalAddr: local,
		Config: rdmacm.DatagramConfig{RecvQueue: 256, Setup: func(c *rdmacm.DatagramConn) (err error) {
			messages, err = c.NewReceiver()
			return err
		}},
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Fprintf(os.Stderr, "joined %v from %v\n", group, conn.LocalAddr().Addr())

	receiving, leave := context.WithCancel(ctx)
	var showing sync.WaitGroup
	defer showing.Wait()
	defer leave()
	showing.Go(func() { show(receiving, conn, messages) })
	return speak(ctx, conn, name)
}

// show prints what the others send.
func show(ctx context.Context, conn *rdmacm.DatagramConn, messages *rdmacm.Receiver) {
	for {
		m, err := messages.Next(ctx)
		if err != nil {
			return // chat ends, or conn has failed; speak returns the error
		}
		// The group also delivers datagrams to their sender.
		from, err := m.Sender()
		if err == nil && from.QPNum == conn.QP().Num() && from.Path.DGID.Addr() == conn.LocalAddr().Addr() {
			continue
		}
		fmt.Printf("%s\n", m.Data)
	}
}

// speak sends the lines of standard input.
func speak(ctx context.Context, conn *rdmacm.DatagramConn, name string) error {
	memory, err := conn.Alloc(conn.MTU(), 0)
	if err != nil {
		return err
	}
	lines := make(chan string)
	go func() { // it may block forever on standard input; speak does not wait for it
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return nil
			}
			text := name + ": " + line
			if len(text) > conn.MTU() {
				log.Printf("line of %d bytes: a datagram holds at most %d", len(text), conn.MTU())
				continue
			}
			if err := conn.Send(ctx, memory.Sub(0, copy(memory.Bytes(), text))); err != nil {
				return err
			}
		case <-conn.Done():
			return conn.Err()
		case <-ctx.Done():
			return nil
		}
	}
}
