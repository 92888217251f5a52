// SPDX-License-Identifier: Apache-2.0

// Datagram exchanges datagrams: a client asks, and the server answers with the
// text in capitals. One queue pair of the server serves all clients, and knows
// them only by their datagrams. Datagrams may be lost, so clients ask again.
//
//	datagram -listen 192.0.2.1:7471
//	datagram 192.0.2.1:7471 hello world
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const (
	patience = time.Second // time after which a client asks again
	attempts = 5
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("datagram: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: datagram -listen address\n       datagram address text...")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0:
		if err = serve(ctx, *listen); ctx.Err() != nil {
			err = nil // an interrupt is how a server ends
		}
	case *listen == "" && flag.NArg() >= 2:
		err = ask(ctx, flag.Arg(0), flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve answers until ctx ends.
func serve(ctx context.Context, address string) error {
	ln, err := rdmacm.ListenDatagram(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	first, err := ln.Accept(ctx) // determines the device for the queue pair
	if err != nil {
		return err
	}
	var questions *rdmacm.Receiver
	conn, err := first.Accept(ctx, &rdmacm.DatagramConfig{RecvQueue: 256, Setup: func(c *rdmacm.DatagramConn) (err error) {
		questions, err = c.NewReceiver()
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	var introducing sync.WaitGroup
	defer introducing.Wait()
	defer cancel()
	introducing.Go(func() { introduce(ctx, ln, conn) })
	return answer(ctx, conn, questions)
}

// introduce tells every other client which queue pair to use.
func introduce(ctx context.Context, ln *rdmacm.DatagramListener, conn *rdmacm.DatagramConn) {
	for {
		req, err := ln.Accept(ctx)
		if err == nil {
			err = req.AcceptOn(conn, nil)
		}
		switch {
		case ctx.Err() != nil:
			return
		case req == nil:
			log.Printf("no more clients: %v", err)
			return
		case err != nil:
			log.Printf("client %v: %v", req.RemoteAddr(), err)
		}
	}
}

// answer answers every question, with the question's number as immediate data.
func answer(ctx context.Context, conn *rdmacm.DatagramConn, questions *rdmacm.Receiver) error {
	memory, err := conn.Alloc(conn.MTU(), 0)
	if err != nil {
		return err
	}
	for {
		question, err := questions.Next(ctx)
		if err != nil {
			return err
		}
		number, _ := question.Imm()
		n := copy(memory.Bytes(), bytes.ToUpper(question.Data))
		from, err := question.Sender()
		if err == nil {
			err = conn.SendImmTo(ctx, from, number, memory.Sub(0, n))
		}
		if conn.Err() != nil || ctx.Err() != nil {
			return err
		}
		if err != nil {
			log.Printf("no answer to queue pair %d: %v", from.QPNum, err)
		}
	}
}

// ask asks the questions in turn and prints the answers.
func ask(ctx context.Context, server string, texts []string) error {
	dialing, cancel := context.WithTimeout(ctx, attempts*patience)
	defer cancel()
	conn, err := rdmacm.DialDatagram(dialing, server, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers, err := conn.NewReceiver()
	if err != nil {
		return err
	}
	memory, err := conn.Alloc(conn.MTU(), 0)
	if err != nil {
		return err
	}
	for i, text := range texts {
		if len(text) > conn.MTU() {
			return fmt.Errorf("text of %d bytes: a datagram holds at most %d", len(text), conn.MTU())
		}
		question := memory.Sub(0, copy(memory.Bytes(), text))
		var answer []byte
		for attempt := 1; ; attempt++ {
			if err := conn.SendImm(ctx, uint32(i), question); err != nil {
				return err
			}
			answer, err = await(ctx, answers, uint32(i))
			if err == nil {
				break
			}
			if attempt == attempts || !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("question %q: no answer: %w", text, err)
			}
		}
		fmt.Printf("%s\n", answer)
	}
	return nil
}

// await waits for the answer to a question, and skips repeated answers to
// earlier ones.
func await(ctx context.Context, answers *rdmacm.Receiver, number uint32) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		answer, err := answers.Next(ctx)
		if err != nil {
			return nil, err
		}
		if n, ok := answer.Imm(); ok && n == number {
			return answer.Data, nil
		}
	}
}
