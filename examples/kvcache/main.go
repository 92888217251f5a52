// SPDX-License-Identifier: Apache-2.0

// Kvcache moves paged key-value blocks from a prefill process to decode
// processes, as inference servers do. For each prompt, a decode process tells
// the prefill process which of its pages are free. The prefill process writes
// pages from anywhere in its memory there, one layer while it computes the
// next. A notification follows each layer. Decode processes come and go, even
// in the middle of a prompt, which another one then gets.
//
//	kvcache -listen 192.0.2.1:7471 -prompts 100
//	kvcache 192.0.2.1:7471
//
// The second command is a decode process; start any number of them. They run
// until Ctrl-C, and also serve prefill processes that are started later.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
	"github.com/verbena-go/verbena/transfer"
)

// shape is the size of a prompt: so many pages in each layer. Processes have
// memory for two prompts, so that a prompt's pages can be scattered. It holds
// the pages of one layer after the other.
type shape struct{ layers, pages, pageSize int }

func (s shape) at(layer, page int) int { return (layer*2*s.pages + page) * s.pageSize }
func (s shape) choose() (pages []int)  { return rand.Perm(2 * s.pages)[:s.pages] }

func (s shape) sum(memory []byte, layer int, pages []int) string {
	h := sha256.New()
	for _, page := range pages {
		h.Write(memory[s.at(layer, page):][:s.pageSize])
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// A message is the JSON in a notification. The prefill process sends the first
// one without a Sum. The decode process answers with Pages, gets a Sum for each
// layer of a prompt, and sends Pages again.
type message struct {
	Session       uint64
	Pages         []int // where the next prompt is to be
	Prompt, Layer int
	Sum           string // SHA-256 of the layer, which is in place
}

func (m message) text() []byte {
	text, _ := json.Marshal(m) // cannot fail
	return text
}

func receive(ctx context.Context, from *transfer.Peer) (m message, err error) {
	text, err := from.Receive(ctx)
	return m, cmp.Or(err, json.Unmarshal(text, &m))
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("kvcache: ")
	listen := flag.String("listen", "", "run the prefill process at this `address`, such as 192.0.2.1:7471 or :7471")
	prompts := flag.Int("prompts", 10, "`number` of prompts, after which the prefill process exits")
	var s shape // the same for all processes
	flag.IntVar(&s.layers, "layers", 8, "`number` of layers, up to 1024")
	flag.IntVar(&s.pages, "pages", 16, "`number` of pages of a prompt in each layer, up to 256")
	flag.IntVar(&s.pageSize, "size", 64<<10, "size of a page in `bytes`, from 16384 to 2097152")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: kvcache [flag...] -listen address\n       kvcache [flag...] address")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *prompts < 1 || s.layers < 1 || s.layers > 1024 || s.pages < 1 || s.pages > 256 || s.pageSize < 16<<10 || s.pageSize > 2<<20 || (*listen == "") != (flag.NArg() == 1) {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	engine, err := transfer.New(transfer.Config{RetryTimeout: 2 * time.Second}) // after which a process counts as dead
	if err == nil && *listen != "" {
		err = prefill(ctx, engine, *listen, s, *prompts)
	} else if err == nil {
		err = decode(ctx, engine, flag.Arg(0), s)
	}
	if err = errors.Join(err, engine.Close()); err != nil && !errors.Is(err, context.Canceled) { // by Ctrl-C
		log.Fatal(err)
	}
}

// prefill serves decode processes until they have n prompts, or ctx ends.
func prefill(ctx context.Context, engine *transfer.Engine, address string, s shape, n int) error {
	ln, err := engine.Listen(ctx, address, transfer.ListenConfig{Authenticate: func(_ context.Context, _ netip.AddrPort, other []byte) ([]byte, error) {
		if string(other) != fmt.Sprint(s) {
			return nil, fmt.Errorf("prompts have %d layers of %d pages of %d bytes here", s.layers, s.pages, s.pageSize)
		}
		return nil, nil
	}})
	if err != nil {
		return err
	}
	fmt.Println("listening on", ln.Addr())
	ctx, stop := context.WithCancel(ctx)
	var running, missing sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	prompts := make(chan int) // that no decode process has
	missing.Add(n)
	go func() {
		for i := range n {
			prompts <- i
		}
		missing.Wait()
		stop()
	}()
	for {
		peer, err := ln.Accept(ctx)
		if err != nil {
			return err // also when all prompts are written
		}
		fmt.Println(peer, "has joined")
		running.Go(func() {
			prompt, err := serve(ctx, peer, s, prompts, missing.Done)
			if prompt >= 0 {
				go func() { prompts <- prompt }() // for another decode process
			}
			if ctx.Err() == nil {
				log.Printf("%v has left without prompt %d: %v", peer, prompt, err)
			}
		})
	}
}

// serve writes prompts to a decode process until it leaves or ctx ends. It
// calls done for each that the process has, and returns the one it may lack, or
// -1.
func serve(ctx context.Context, peer *transfer.Peer, s shape, prompts <-chan int, done func()) (prompt int, err error) {
	defer peer.Close()
	pool := make([]byte, s.at(s.layers, 0)) // where prompts are computed; the engine registers what batches use
	layers := make([]*transfer.Batch, s.layers)
	for i := range layers {
		layers[i] = peer.NewBatch(s.pages)
	}
	session := rand.Uint64()
	if err := peer.Send(ctx, message{Session: session}.text()); err != nil {
		return -1, err
	}
	cache, err := peer.Region(ctx, "cache")
	if err != nil {
		return -1, err
	}
	for prompt = -1; ; {
		m, err := receive(ctx, peer)
		switch {
		case err != nil:
			return prompt, err
		case m.Session != session || len(m.Pages) != s.pages:
			continue // the answer to an earlier prefill process
		case prompt >= 0:
			fmt.Printf("prompt %d is at %v\n", prompt, peer)
			done()
		}
		select {
		case prompt = <-prompts:
		case <-peer.Done():
			return -1, peer.Err()
		case <-ctx.Done():
			return -1, ctx.Err()
		}
		if err := write(ctx, layers, cache, pool, s, prompt, m.Pages); err != nil {
			return prompt, err
		}
	}
}

// write computes a prompt and writes it to pages of the cache.
func write(ctx context.Context, layers []*transfer.Batch, cache *transfer.RemoteRegion, pool []byte, s shape, prompt int, pages []int) (err error) {
	places := s.choose()
	for l, batch := range layers {
		batch.Reset()
		for i, page := range pages {
			b := pool[s.at(l, places[i]):][:s.pageSize]
			_, _ = rand.NewChaCha8([32]byte{byte(prompt), byte(prompt >> 8), byte(l), byte(i)}).Read(b) // the model
			if err := batch.Write(cache, uint64(s.at(l, page)), b); err != nil {
				return err
			}
		}
		if err := batch.Notify(message{Prompt: prompt, Layer: l, Sum: s.sum(pool, l, places)}.text()); err != nil {
			return err
		}
		if err := batch.Submit(ctx); err != nil { // the next layer is computed while this one moves
			return err
		}
	}
	for _, batch := range layers {
		err = cmp.Or(err, batch.Wait(ctx))
	}
	return err
}

// decode takes prompts until ctx ends.
func decode(ctx context.Context, engine *transfer.Engine, address string, s shape) error {
	cache, err := engine.Alloc(s.at(s.layers, 0), transfer.RegionConfig{Name: "cache", Access: transfer.WriteAccess})
	if err != nil {
		return err
	}
	peer, err := engine.Dial(ctx, address, transfer.DialConfig{Credentials: fmt.Append(nil, s)})
	if err != nil {
		return err
	}
	var answer message
	for missing := 0; ; { // layers
		m, err := receive(ctx, peer)
		switch {
		case errors.Is(err, transfer.ErrSessionEnded): // the prefill process will begin anew
			continue
		case err != nil:
			return err
		case m.Sum == "": // the prefill process has begun, perhaps anew
			answer.Session = m.Session
		case m.Layer < 0 || m.Layer >= s.layers || s.sum(cache.Bytes(), m.Layer, answer.Pages) != m.Sum:
			return fmt.Errorf("layer %d of prompt %d is not what was sent", m.Layer, m.Prompt)
		default:
			fmt.Printf("prompt %d, layer %d: %s\n", m.Prompt, m.Layer, m.Sum)
			if missing--; missing > 0 {
				continue
			}
		}
		// A model would decode here, and need the pages until the end of the
		// answer.
		missing, answer.Pages = s.layers, s.choose()
		if err := peer.Send(ctx, answer.text()); err != nil && !errors.Is(err, transfer.ErrSessionEnded) {
			return err
		}
	}
}
