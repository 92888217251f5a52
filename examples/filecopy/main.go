// SPDX-License-Identifier: Apache-2.0

// Filecopy copies a file to another host with RDMA writes, several of them in
// flight at a time, and finally compares checksums.
//
//	filecopy -listen 192.0.2.1:7471 copy.bin
//	filecopy -to 192.0.2.1:7471 original.bin
//
// The receiving end offers a window of slots. The sending end writes each chunk
// of the file into a slot, with the chunk's number as immediate data. When the
// receiving end has stored the chunk in the copy, it sends the number back, and
// the slot is free for the next chunk.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

const (
	chunkSize = 256 << 10
	slots     = 8
	maxSize   = chunkSize << 32 // size of as many chunks as 32 bits of immediate data can number
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("filecopy: ")
	listen := flag.String("listen", "", "receive at this `address`, such as 192.0.2.1:7471 or :7471")
	to := flag.String("to", "", "`address` to send to")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: filecopy -listen address copy\n       filecopy -to address original")
		flag.PrintDefaults()
	}
	flag.Parse()
	if (*listen == "") == (*to == "") || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *listen != "" {
		err = receive(ctx, *listen, flag.Arg(0))
	} else {
		err = send(ctx, *to, flag.Arg(0))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// receive receives one file. The file gets its final name when it is complete.
func receive(ctx context.Context, address, path string) error {
	file, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("listening on", ln.Addr())
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	size, err := parseSize(req.PrivateData())
	if err != nil {
		_ = req.Reject([]byte(err.Error()))
		return fmt.Errorf("%v: %w", req.RemoteAddr(), err)
	}
	var window *ibverbs.MR
	var messages *rdmacm.Receiver
	setup := func(c *rdmacm.Conn) (err error) {
		if window, err = c.Alloc(slots*chunkSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
			return err
		}
		if messages, err = c.NewReceiver(sha256.Size); err != nil {
			return err
		}
		offer, err := window.Remote().MarshalBinary()
		if err != nil {
			return err
		}
		return c.SetPrivateData(offer)
	}
	conn, err := req.Accept(ctx, &rdmacm.Config{RecvQueue: slots + 1, Setup: setup})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := store(ctx, conn, messages, window, file, size); err != nil {
		return fmt.Errorf("the copy is incomplete: %w", err)
	}
	original, err := messages.Next(ctx)
	if err != nil {
		return err
	}
	sum, err := checksum(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(sum, original.Data) {
		return fmt.Errorf("the copy differs: its checksum is %x, the original's %x", sum, original.Data)
	}
	fmt.Printf("%x\n", sum)
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	if err := conn.Send(ctx); err != nil { // an empty message confirms the copy
		return err
	}
	return conn.Wait(ctx) // until the other end closes, after it has received the message
}

// parseSize returns the size of the file from the sender's private data, which
// can have any content and length.
func parseSize(privateData []byte) (int64, error) {
	if len(privateData) < 8 {
		return 0, fmt.Errorf("private data of %d bytes holds no file size", len(privateData))
	}
	size := binary.BigEndian.Uint64(privateData)
	if size > maxSize {
		return 0, fmt.Errorf("file of %d bytes is too large", size)
	}
	return int64(size), nil
}

// store writes chunks to the copy in the order in which they arrive.
func store(ctx context.Context, conn *rdmacm.Conn, messages *rdmacm.Receiver, window *ibverbs.MR, file *os.File, size int64) error {
	bar := newProgress(os.Stderr, size)
	defer bar.end()
	for range chunks(size) {
		m, err := messages.Next(ctx)
		if err != nil {
			return err
		}
		number, _ := m.Imm()
		chunk := int64(number)
		n, _ := m.Written()
		if chunk >= chunks(size) || n != chunkLen(size, chunk) {
			return fmt.Errorf("unexpected chunk %d of %d bytes, for a file of %d bytes", chunk, n, size)
		}
		data := window.Sub(int(chunk%slots)*chunkSize, n)
		if _, err := file.WriteAt(data.Bytes(), chunk*chunkSize); err != nil {
			return err
		}
		if err := conn.SendImm(ctx, number); err != nil { // frees the slot
			return err
		}
		bar.add(n)
	}
	return nil
}

// sender is the end that has the original.
type sender struct {
	conn    *rdmacm.Conn
	file    *os.File
	size    int64
	memory  *ibverbs.MR          // memory to send from, with the same slots as the window
	window  ibverbs.RemoteBuffer // memory at the other end to which chunks are written
	answers *rdmacm.Receiver
	free    [slots]chan struct{} // receives a value when the slot's chunk is in the copy
}

// send sends a file.
func send(ctx context.Context, address, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return fmt.Errorf("%s is not a regular file, or too large", path)
	}
	size := binary.BigEndian.AppendUint64(nil, uint64(info.Size()))
	conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{RecvQueue: slots, PrivateData: size})
	if err != nil {
		return err
	}
	defer conn.Close()
	s := &sender{conn: conn, file: file, size: info.Size()}
	if err := s.window.UnmarshalBinary(conn.PeerData()); err != nil {
		return err
	}
	if s.window.Len != slots*chunkSize {
		return fmt.Errorf("%v offers a window of %d bytes, not %d", conn.RemoteAddr(), s.window.Len, slots*chunkSize)
	}
	if s.memory, err = conn.Alloc(slots*chunkSize, 0); err != nil {
		return err
	}
	if s.answers, err = conn.NewReceiver(0); err != nil {
		return err
	}
	if err := s.transfer(ctx); err != nil {
		return err
	}
	sum, err := checksum(file)
	if err != nil {
		return err
	}
	if err := conn.Send(ctx, s.memory.Sub(0, copy(s.memory.Bytes(), sum))); err != nil {
		return err
	}
	if _, err := s.answers.Next(ctx); err != nil {
		return fmt.Errorf("the other end has not confirmed the checksum %x: %w", sum, err)
	}
	fmt.Printf("%x\n", sum)
	return conn.Shutdown(ctx) // blocks until the other end knows; then this program may exit
}

// transfer sends all chunks. Each slot has a goroutine that fills it.
func (s *sender) transfer(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var filling sync.WaitGroup
	defer filling.Wait()
	defer func() { cancel(err) }()
	for slot := range s.free {
		s.free[slot] = make(chan struct{}, 1)
		filling.Go(func() {
			if err := s.fill(ctx, int64(slot)); err != nil {
				cancel(err) // makes Next below return, and ends the other goroutines
			}
		})
	}
	bar := newProgress(os.Stderr, s.size)
	defer bar.end()
	for range chunks(s.size) {
		answer, err := s.answers.Next(ctx)
		if err != nil {
			return err
		}
		number, _ := answer.Imm()
		select {
		case s.free[number%slots] <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		bar.add(chunkLen(s.size, int64(number)))
	}
	return nil
}

// fill sends every chunk that belongs into the slot, one after the other.
func (s *sender) fill(ctx context.Context, slot int64) error {
	for chunk := slot; chunk < chunks(s.size); chunk += slots {
		data := s.memory.Sub(int(slot)*chunkSize, chunkLen(s.size, chunk))
		if _, err := s.file.ReadAt(data.Bytes(), chunk*chunkSize); err != nil {
			return err
		}
		to := s.window.Sub(uint64(slot)*chunkSize, chunkSize)
		if err := s.conn.WriteImm(ctx, to, uint32(chunk), data); err != nil {
			return err
		}
		select {
		case <-s.free[slot]:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func chunks(size int64) int64 { return (size + chunkSize - 1) / chunkSize }

// chunkLen returns the size of a chunk. The last one may be smaller.
func chunkLen(size, chunk int64) int { return int(max(min(chunkSize, size-chunk*chunkSize), 0)) }

func checksum(file *os.File) ([]byte, error) {
	hash := sha256.New()
	_, err := io.Copy(hash, io.NewSectionReader(file, 0, 1<<62)) // from the start
	return hash.Sum(nil), err
}

// progress shows on a terminal how much of a file is in the copy.
type progress struct {
	out        io.Writer
	start      time.Time
	done, size int64
}

func newProgress(out *os.File, size int64) *progress {
	p := &progress{out: io.Discard, start: time.Now(), size: size}
	if info, err := out.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		p.out = out
	}
	return p
}

func (p *progress) add(n int) {
	p.done += int64(n)
	bar := strings.Repeat("#", int(30*min(p.done, p.size)/p.size))
	rate := float64(p.done) / (1 << 20) / time.Since(p.start).Seconds()
	fmt.Fprintf(p.out, "\r[%-30s] %d of %d bytes, %.1f MiB/s", bar, p.done, p.size, rate)
}

func (p *progress) end() { fmt.Fprintln(p.out) }
