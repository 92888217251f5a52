// SPDX-License-Identifier: Apache-2.0

// Allreduce sums vectors of float32 over the processes of a ring: afterwards,
// each has the sum. The first process prints the time and the bandwidth, which
// is size by time, and with -tcp those of the same ring over TCP.
//
//	allreduce -rank 0 192.0.2.1:7471 192.0.2.2:7471
//	allreduce -rank 1 192.0.2.1:7471 192.0.2.2:7471
//	allreduce -local 192.0.2.1:7471 192.0.2.1:7472 192.0.2.1:7473
//
// All processes get the addresses of all, and the same flags but for the rank.
// The last command runs the whole ring in one process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
	"github.com/verbena-go/verbena/transfer"
)

var (
	limit  = flag.Duration("timeout", time.Minute, "`time` after which a sum fails")
	rank   = flag.Int("rank", 0, "`number` of this process, from 0: its address is the one in this place")
	local  = flag.Bool("local", false, "run the ring in this process")
	tcp    = flag.Bool("tcp", false, "also use TCP, at the same addresses")
	most   = flag.Int("max", 64<<20, "size of the largest vector in `bytes`, from 1024 to 67108864; the smallest has 1024")
	rounds = flag.Int("rounds", 10, "`number` of sums of each size")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("allreduce: ")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: allreduce [flag...] address address...")
		flag.PrintDefaults()
	}
	flag.Parse()
	n := flag.NArg()
	if n < 2 || n > 64 || *rank < 0 || *rank >= n || *most < 1<<10 || *most > 64<<20 || *most%4 != 0 || *rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	var members sync.WaitGroup
	for i := range n {
		if *local || i == *rank {
			members.Go(func() {
				m := member{rank: i, n: n}
				if err := m.run(ctx, flag.Args()); err != nil {
					fail(fmt.Errorf("rank %d: %w", i, err))
				}
			})
		}
	}
	members.Wait()
	if err := context.Cause(ctx); err != nil {
		log.Fatal(err)
	}
}

// A member has memory for a vector, an inbox of the same size, and a barrier.
type member struct {
	rank, n int
	memory  []byte
	numbers []float32 // the same memory
}

// move sends out to the next member, which wants it at the offset to of its
// memory, and returns when in has come from the previous one.
type move func(ctx context.Context, out []byte, to int, in []byte) error

func (m *member) run(ctx context.Context, addresses []string) (err error) {
	engine, err := transfer.New(transfer.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	region, err := engine.Alloc(2**most+8, transfer.RegionConfig{Name: "memory", Access: transfer.WriteAccess})
	if err != nil {
		return err
	}
	m.memory = region.Bytes()
	m.numbers = unsafe.Slice((*float32)(unsafe.Pointer(&m.memory[0])), len(m.memory)/4)
	here, there := addresses[m.rank], addresses[(m.rank+1)%m.n]
	var wait net.Listener
	if *tcp { // before RDMA: a member that is connected there listens here
		if wait, err = net.Listen("tcp", here); err != nil {
			return err
		}
		defer wait.Close()
	}
	moves := make([]move, 1, 2)
	if moves[0], err = byRDMA(ctx, engine, here, there); err != nil {
		return err
	}
	if *tcp {
		over, err := byTCP(ctx, wait, there)
		if err != nil {
			return err
		}
		moves = append(moves, over)
	}
	fmt.Printf("rank %d is connected\n", m.rank)
	return m.measure(ctx, moves)
}

// byRDMA moves by writes, each with a notification.
func byRDMA(ctx context.Context, engine *transfer.Engine, here, there string) (move, error) {
	ln, err := engine.Listen(ctx, here, transfer.ListenConfig{})
	if err != nil {
		return nil, err
	}
	next, err := engine.Dial(ctx, there, transfer.DialConfig{})
	for errors.Is(err, syscall.ECONNREFUSED) { // not started yet
		time.Sleep(100 * time.Millisecond)
		next, err = engine.Dial(ctx, there, transfer.DialConfig{})
	}
	if err != nil {
		return nil, err
	}
	prev, err := ln.Accept(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := next.Region(ctx, "memory")
	if err != nil {
		return nil, err
	}
	batch := next.NewBatch(1)
	return func(ctx context.Context, out []byte, to int, _ []byte) error { // the previous one knows where in is
		batch.Reset()
		if err := errors.Join(batch.Write(memory, uint64(to), out), batch.Notify(nil)); err != nil {
			return err
		}
		if err := batch.Submit(ctx); err != nil {
			return err
		}
		if _, err := prev.Receive(ctx); err != nil {
			return err
		}
		return batch.Wait(ctx)
	}, nil
}

// byTCP moves by connections.
func byTCP(ctx context.Context, ln net.Listener, there string) (move, error) {
	next, err := new(net.Dialer).DialContext(ctx, "tcp", there)
	if err != nil {
		return nil, err
	}
	prev, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { next.Close(); prev.Close() })
	return func(_ context.Context, out []byte, _ int, in []byte) error {
		sent := make(chan error, 1)
		go func() { _, err := next.Write(out); sent <- err }()
		_, err := io.ReadFull(prev, in)
		return errors.Join(err, <-sent)
	}, nil
}

// sum makes a vector of n numbers the sum of all members' vectors. First, its
// chunks go around, and each member adds its own; then, the sums go around.
//
// No chunk is overwritten before it was used. Each has its place in the inbox,
// and at the end, a member has the sum that the next one was the last to add
// to, so that one is done with its inbox. A sum replaces a chunk of the vector
// after it has gone around, so the chunk was sent before.
func (m *member) sum(ctx context.Context, move move, n int) error {
	cut := func(i int) int { return i * n / m.n }
	for step := range 2 * (m.n - 1) {
		out, in := (m.rank+2*m.n-step)%m.n, (m.rank+2*m.n-step-1)%m.n
		start, end, a, b := 4*cut(out), 4*cut(out+1), 4*cut(in), 4*cut(in+1)
		at := 0 // sums go to the vector
		if step < m.n-1 {
			at = *most // chunks go to the inbox
		}
		if err := move(ctx, m.memory[start:end], at+start, m.memory[at+a:at+b]); err != nil {
			return err
		}
		for i := cut(in); i < cut(in+1) && at > 0; i++ {
			m.numbers[i] += m.numbers[at/4+i]
		}
	}
	return nil
}

// once fills a vector of n numbers, sums it, checks the sum, and adds the time.
func (m *member) once(ctx context.Context, move move, n, round int, took *time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, *limit) // without it, a notification for a dead process waits forever
	defer cancel()
	for i := range m.numbers[:n] {
		m.numbers[i] = float32((m.rank + 1) * ((i + round) % 1000))
	}
	for range m.n - 1 { // a barrier: until all have filled theirs
		if err := move(ctx, m.memory[2**most:][:4], 2**most+4, m.memory[2**most+4:]); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := m.sum(ctx, move, n); err != nil {
		return err
	}
	*took += time.Since(start) / time.Duration(*rounds)
	for i, x := range m.numbers[:n] {
		if want := float32(m.n * (m.n + 1) / 2 * ((i + round) % 1000)); x != want {
			return fmt.Errorf("element %d of the sum is %v instead of %v", i, x, want)
		}
	}
	return nil
}

// measure sums vectors of each size, and prints the average times.
func (m *member) measure(ctx context.Context, moves []move) error {
	for size := 1 << 10; size <= *most; size *= 4 {
		took := make([]time.Duration, len(moves))
		for i := range *rounds * len(moves) {
			way := i % len(moves) // in turns
			if err := m.once(ctx, moves[way], size/4, i, &took[way]); err != nil {
				return err
			}
		}
		text := fmt.Sprintf("%8d bytes", size)
		for i, t := range took {
			text += fmt.Sprintf("   %-4s %10v %6.3f GB/s", []string{"RDMA", "TCP"}[i], t.Round(time.Microsecond), float64(size)/float64(t.Nanoseconds()))
		}
		if m.rank == 0 {
			fmt.Println(text)
		}
	}
	return nil
}
