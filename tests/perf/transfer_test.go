// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/transfer"
)

// moving is what is moved, and how.
type moving struct {
	op                   string // read or write
	size                 int    // bytes of a request
	threads, connections int    // connections: for each pair of devices
}

// requests returns the number of requests in a batch.
func (m moving) requests() int { return max(1, min(16, 4<<20/m.size)) }

// memory returns the number of bytes that a thread moves with a batch.
func (m moving) memory() int { return m.size * m.requests() }

func (m moving) args() []string {
	return []string{m.op, strconv.Itoa(m.size), strconv.Itoa(m.threads), strconv.Itoa(m.connections)}
}

func parseMoving(args []string) (m moving) {
	m.op = args[0]
	m.size, _ = strconv.Atoi(args[1])
	m.threads, _ = strconv.Atoi(args[2])
	m.connections, _ = strconv.Atoi(args[3])
	return m
}

// movingTime is how long a mover measures, after as long without measuring.
const movingTime = 200 * time.Millisecond

// touch writes to each page of memory: the machine may be given a page only
// then, which takes long.
func touch(memory []byte) {
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
}

// memoryServer is a program that has memory for a mover. Its arguments are how
// it is reached, its host and those of moving. It prints where it listens, and
// ends at the end of its input.
func memoryServer(args []string, stdout, stderr io.Writer) int {
	address, stop, err := serveMemory(args[0], args[1], parseMoving(args[2:]))
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, address)
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	return 0
}

func serveMemory(network, host string, m moving) (address string, stop func(), err error) {
	ctx := context.Background()
	size := m.memory() * m.threads
	switch network {
	case "tcp":
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go serveStream(c, m)
			}
		}()
		return ln.Addr().String(), func() { _ = ln.Close() }, nil
	case "rdmacm":
		ln, err := rdmacm.Listen(ctx, net.JoinHostPort(host, "0"), nil)
		if err != nil {
			return "", nil, err
		}
		device, err := ln.Device()
		if err != nil {
			return "", nil, err
		}
		pd, err := device.AllocPD()
		if err != nil {
			return "", nil, err
		}
		mr, err := pd.Alloc(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
		if err != nil {
			return "", nil, err
		}
		touch(mr.Bytes())
		offer, err := mr.Remote().MarshalBinary()
		if err != nil {
			return "", nil, err
		}
		go func() {
			_ = ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
				if conn, err := req.Accept(ctx, &rdmacm.Config{PD: pd, PrivateData: offer, SendQueue: 128}); err == nil {
					_ = conn.Wait(ctx)
					_ = conn.Close()
				}
			})
		}()
		return ln.Addr().String(), func() {}, nil
	}
	e, err := transfer.New(transfer.Config{})
	if err != nil {
		return "", nil, err
	}
	memory, err := e.Alloc(size, transfer.RegionConfig{Name: "memory", Access: transfer.ReadAccess | transfer.WriteAccess})
	if err != nil {
		return "", nil, err
	}
	touch(memory.Bytes())
	ln, err := e.Listen(ctx, ":0", transfer.ListenConfig{})
	if err != nil {
		return "", nil, err
	}
	return net.JoinHostPort(host, strconv.Itoa(int(ln.Addr().Port()))), func() { _ = e.Close() }, nil
}

// serveStream takes or sends batches over TCP. The client announces a batch
// with 4 bytes, and is told the end of a batch that it has written with one.
func serveStream(c net.Conn, m moving) {
	defer c.Close()
	memory := make([]byte, m.memory())
	touch(memory)
	var head [4]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		b := memory[:binary.BigEndian.Uint32(head[:])]
		var err error
		if m.op == "read" {
			_, err = c.Write(b)
		} else if _, err = io.ReadFull(c, b); err == nil {
			_, err = c.Write(head[:1])
		}
		if err != nil {
			return
		}
	}
}

// mover is a program that moves memory to or from a memoryServer. Its arguments
// are how it reaches it, the address, and those of moving. It prints MiB/s.
func mover(args []string, stdout, stderr io.Writer) int {
	m := parseMoving(args[2:])
	batches, stop, err := moveMemory(args[0], args[1], m)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	defer stop()
	var moved atomic.Int64
	var ended atomic.Bool
	var failed atomic.Pointer[error]
	var started, running sync.WaitGroup
	for _, batch := range batches {
		started.Add(1)
		running.Go(func() {
			for first := true; !ended.Load(); first = false {
				err := batch()
				if first {
					started.Done()
				}
				if err != nil {
					failed.Store(&err)
					return
				}
				moved.Add(int64(m.memory()))
			}
		})
	}
	started.Wait()
	time.Sleep(movingTime)
	before, began := moved.Load(), time.Now()
	time.Sleep(movingTime)
	for moved.Load() == before && failed.Load() == nil { // on a busy machine
		time.Sleep(tick)
	}
	rate := float64(moved.Load()-before) / time.Since(began).Seconds()
	ended.Store(true)
	running.Wait()
	if err := failed.Load(); err != nil {
		fmt.Fprintln(stderr, *err)
		return 1
	}
	fmt.Fprintln(stdout, rate/(1<<20))
	return 0
}

// moveMemory connects, and returns for each thread what moves a batch.
func moveMemory(network, address string, m moving) (batches []func() error, stop func(), err error) {
	ctx := context.Background()
	switch network {
	case "tcp":
		return moveByTCP(address, m)
	case "rdmacm":
		return moveByBatches(ctx, address, m)
	}
	e, err := transfer.New(transfer.Config{Connections: m.connections})
	if err != nil {
		return nil, nil, err
	}
	peer, err := e.Dial(ctx, address, transfer.DialConfig{})
	if err != nil {
		return nil, nil, err
	}
	remote, err := peer.Region(ctx, "memory")
	if err != nil {
		return nil, nil, err
	}
	memory, err := e.Alloc(m.memory()*m.threads, transfer.RegionConfig{})
	if err != nil {
		return nil, nil, err
	}
	touch(memory.Bytes())
	for t := range m.threads {
		batch := peer.NewBatch(m.requests())
		for i := range m.requests() {
			at := t*m.memory() + i*m.size
			local := memory.Bytes()[at : at+m.size]
			if m.op == "read" {
				err = batch.Read(local, remote, uint64(at))
			} else {
				err = batch.Write(remote, uint64(at), local)
			}
			if err != nil {
				return nil, nil, err
			}
		}
		batches = append(batches, func() error {
			if err := batch.Submit(ctx); err != nil {
				return err
			}
			return batch.Wait(ctx)
		})
	}
	return batches, func() { _ = e.Close() }, nil
}

// moveByBatches moves memory by plain batches.
func moveByBatches(ctx context.Context, address string, m moving) (batches []func() error, stop func(), err error) {
	var conns []*rdmacm.Conn
	for range m.connections {
		conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{SendQueue: 128})
		if err != nil {
			return nil, nil, err
		}
		conns = append(conns, conn)
	}
	for t := range m.threads {
		conn := conns[t%len(conns)]
		var remote ibverbs.RemoteBuffer
		if err := remote.UnmarshalBinary(conn.PeerData()); err != nil {
			return nil, nil, err
		}
		local, err := conn.Alloc(m.memory(), ibverbs.AccessLocalWrite)
		if err != nil {
			return nil, nil, err
		}
		touch(local.Bytes())
		batch, err := ibverbs.NewSendBatch(m.requests(), 1)
		if err != nil {
			return nil, nil, err
		}
		var done rdmacm.Transfer
		batches = append(batches, func() error {
			batch.Reset()
			for i := range m.requests() {
				to := remote.Sub(uint64(t*m.memory()+i*m.size), uint64(m.size))
				from := local.Sub(i*m.size, m.size)
				var err error
				if m.op == "read" {
					err = batch.Read(0, to, 0, from)
				} else {
					err = batch.Write(0, to, 0, from)
				}
				if err != nil {
					return err
				}
			}
			if err := conn.Post(ctx, &done, batch); err != nil {
				return err
			}
			return done.Wait(ctx)
		})
	}
	return batches, func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}, nil
}

func moveByTCP(address string, m moving) (batches []func() error, stop func(), err error) {
	type locked struct {
		sync.Mutex
		net.Conn
	}
	var conns []*locked
	for range m.connections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return nil, nil, err
		}
		conns = append(conns, &locked{Conn: c})
	}
	for t := range m.threads {
		c := conns[t%len(conns)]
		memory := make([]byte, 4+m.memory())
		touch(memory)
		binary.BigEndian.PutUint32(memory, uint32(m.memory()))
		batches = append(batches, func() error {
			c.Lock()
			defer c.Unlock()
			out, in := memory, memory[:1]
			if m.op == "read" {
				out, in = memory[:4], memory[4:]
			}
			if _, err := c.Write(out); err != nil {
				return err
			}
			_, err := io.ReadFull(c, in)
			binary.BigEndian.PutUint32(memory, uint32(m.memory()))
			return err
		})
	}
	return batches, func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}, nil
}
