// SPDX-License-Identifier: Apache-2.0

// Gpu moves data from the memory of one GPU to that of another, without a copy
// in the host's memory: a client writes to a server's GPU. The server checks
// what it has got, inverts every bit and sends it back, from GPU to GPU again.
//
//	gpu -listen 192.0.2.1:7471
//	gpu -n 67108864 192.0.2.1:7471
//
// With -managed, it uses memory that the processor can access, too. The device
// in user space, which is no hardware, can move no other memory of a real GPU.
//
// It opens NVIDIA's or AMD's library at run time. It is a module of its own, so
// that Verbena does not depend on the package that opens libraries. To use GPU
// memory in another program, take memory.go, and cuda.go or rocm.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const maxSize = 1 << 30 // what one message can hold

func main() {
	log.SetFlags(0)
	log.SetPrefix("gpu: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471 or :7471")
	size := flag.Int("n", 1<<20, "transfer this many `bytes`; the server: at most so many")
	managed := flag.Bool("managed", false, "use managed memory, which the processor can access, too")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: gpu -listen address [-n bytes] [-managed]\n       gpu [-n bytes] [-managed] address")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var run func(context.Context, gpu, string, int) error
	address := *listen
	switch {
	case *size < 1 || *size > maxSize:
	case *listen != "" && flag.NArg() == 0:
		run = serve
	case *listen == "" && flag.NArg() == 1:
		run, address = transfer, flag.Arg(0)
	}
	if run == nil {
		flag.Usage()
		os.Exit(2)
	}
	g, err := openGPU()
	if err == nil && *managed {
		g = withManaged{g}
	}
	if err == nil {
		err = run(ctx, g, address, *size)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve serves clients until ctx ends.
func serve(ctx context.Context, g gpu, address string, size int) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		if err := answer(ctx, g, req, size); err != nil && ctx.Err() == nil {
			log.Printf("client %v: %v", req.RemoteAddr(), err)
		}
	})
}

// answer offers GPU memory to a client, and answers what the client writes
// there.
func answer(ctx context.Context, g gpu, req *rdmacm.Request, size int) (err error) {
	conn, err := req.Accept(ctx, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	m, err := newMemory(g, conn.PD(), size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	written, err := conn.PostRecv() // the end of the client's write
	if err != nil {
		return err
	}
	if err := offer(ctx, conn, m.Remote()); err != nil {
		return err
	}
	if _, err := written.Wait(ctx); err != nil {
		return err
	}
	n, ok := written.Written()
	sum, _ := written.Imm()
	if !ok || n < 1 || n > size {
		return fmt.Errorf("received a message that is not a write of 1 to %d bytes", size)
	}

	data := make([]byte, n)
	if err := m.get(data); err != nil {
		return err
	}
	if got := crc32.ChecksumIEEE(data); got != sum {
		return fmt.Errorf("the checksum of %d received bytes is %08x, not %08x", n, got, sum)
	}
	fmt.Printf("%d bytes came into the memory of %s, registered %s: checksum %08x is right\n", n, g.name(), m.way, sum)
	invert(data) // in a real program, the GPU works on the data
	if err := m.put(data); err != nil {
		return err
	}
	if err := conn.Send(ctx, m.Sub(0, n)); err != nil {
		return err
	}
	if err := conn.Wait(ctx); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil // the client has closed the connection
}

// offer tells the peer where it may write.
func offer(ctx context.Context, conn *rdmacm.Conn, where ibverbs.RemoteBuffer) error {
	b, err := where.MarshalBinary()
	if err != nil {
		return err
	}
	message, err := conn.Alloc(len(b), 0) // the processor writes it, so it is in the host's memory
	if err != nil {
		return err
	}
	copy(message.Bytes(), b)
	return conn.Send(ctx, message.All())
}

// transfer writes from GPU memory to the server's, and checks what comes back.
func transfer(ctx context.Context, g gpu, address string, size int) (err error) {
	conn, err := rdmacm.Dial(ctx, address, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	where, err := accept(ctx, conn)
	if err != nil {
		return err
	}
	if where.Len < uint64(size) {
		return fmt.Errorf("the server takes %d bytes, not %d", where.Len, size)
	}
	out, err := newMemory(g, conn.PD(), size, 0) // the device only reads it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	in, err := newMemory(g, conn.PD(), size, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.close()) }()

	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	if err := out.put(data); err != nil {
		return err
	}
	back, err := conn.PostRecv(in.Sub(0, size))
	if err != nil {
		return err
	}
	if err := conn.WriteImm(ctx, where.Sub(0, uint64(size)), crc32.ChecksumIEEE(data), out.Sub(0, size)); err != nil {
		return err
	}
	n, err := back.Wait(ctx)
	if err != nil {
		return err
	}
	got := make([]byte, size)
	if err := in.get(got); err != nil {
		return err
	}
	invert(data)
	if n != size || string(got) != string(data) {
		return fmt.Errorf("the %d bytes that came back are not the %d inverted bytes", n, size)
	}
	fmt.Printf("%d bytes went from the memory of %s, registered %s, and came back\n", n, g.name(), out.way)
	return nil
}

// accept waits for the server's offer.
func accept(ctx context.Context, conn *rdmacm.Conn) (where ibverbs.RemoteBuffer, err error) {
	const size = 64 // larger than an offer
	message, err := conn.Alloc(size, ibverbs.AccessLocalWrite)
	if err != nil {
		return where, err
	}
	n, err := conn.Recv(ctx, message.All())
	if err != nil {
		return where, err
	}
	return where, where.UnmarshalBinary(message.Bytes()[:n])
}

func invert(data []byte) {
	for i := range data {
		data[i] = ^data[i]
	}
}
