// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// conversing is what a program has measured of many clients that each ask, wait
// for the answer, and ask again.
type conversing struct {
	Rate        float64 // requests a second, of all clients
	Median, P99 float64 // microseconds from a request to its answer
	CPU         float64 // processor time of a request in microseconds, of both processes
	Slowest     float64 // requests of the slowest client, divided by the mean
}

// way is how clients reach a server: a network and what is spoken there.
type way struct{ network, protocol string }

// ways are all of them, and the first of each protocol is TCP.
var ways = []way{
	{"tcp", "64 B"},
	{"rdmacm", "64 B"},
	{"rdmacm, pool", "64 B"},
	{"rsocket", "64 B"},
	{"rsocket, pool", "64 B"},
	{"tcp", "redis"},
	{"rsocket", "redis"},
	{"rsocket, pool", "redis"},
	{"tcp", "http"},
	{"rsocket", "http"},
	{"rsocket, pool", "http"},
}

// client has a connection.
type client interface {
	ask() error // sends a request and waits for the answer
	Close() error
}

// messageLen is the number of bytes in a request and in an answer, or in the
// value that a request is for.
const messageLen = 64

// message is what is sent.
var message = bytes.Repeat([]byte{'v'}, messageLen)

var errAnswer = errors.New("the answer is wrong")

// backlog is enough for all clients at once.
const backlog = 1024

// streamConfig has what a connection of small messages needs.
func streamConfig(network string) rsocket.Config {
	config := rsocket.Config{ReadBuffer: 16 << 10, WriteBuffer: 16 << 10, SendQueue: 32, RecvQueue: 32}
	if strings.HasSuffix(network, "pool") {
		config.Pool = &rsocket.Pool{Conns: backlog, Receives: 4096}
	}
	return config
}

// messageConfig has what a connection of small messages needs.
func messageConfig(network string) *rdmacm.Config {
	config := &rdmacm.Config{SendQueue: 2, RecvQueue: 2, MessageSize: messageLen, MaxInline: messageLen}
	if strings.HasSuffix(network, "pool") {
		config.Queues = &rdmacm.Pool{MessageSize: messageLen, Receives: 4096}
	}
	return config
}

// clientServer is a program that serves clients, whose arguments are a network,
// a protocol and an address of the device. It prints where it listens. For each
// line that it reads, it prints the processor time that it has used in
// nanoseconds. It ends at the end of its input.
func clientServer(args []string, stdout, stderr io.Writer) int {
	address, err := serveClients(way{args[0], args[1]}, args[2])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, address)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Fprintln(stdout, int64(cpuTime()))
	}
	return 0
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// serveClients starts to serve, and returns the address.
func serveClients(w way, host string) (string, error) {
	ctx := context.Background()
	address := net.JoinHostPort(host, "0")
	var listener net.Listener
	var err error
	switch {
	case w.network == "tcp":
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	case strings.HasPrefix(w.network, "rsocket"):
		lc := rsocket.ListenConfig{Config: streamConfig(w.network), Backlog: backlog}
		listener, err = lc.Listen(ctx, "rdma", address)
	default:
		config := messageConfig(w.network)
		ln, err := rdmacm.Listen(ctx, address, &rdmacm.ListenConfig{Backlog: backlog})
		if err != nil {
			return "", err
		}
		go func() {
			_ = ln.Serve(ctx, func(ctx context.Context, request *rdmacm.Request) {
				conn, err := request.Accept(ctx, config)
				if err != nil {
					return
				}
				defer conn.Close()
				for m, err := range conn.Messages(ctx) {
					if err != nil || conn.Send(ctx, ibverbs.InlineBytes(m.Data)) != nil {
						return
					}
				}
			})
		}()
		return ln.Addr().String(), nil
	}
	if err != nil {
		return "", err
	}
	if w.protocol == "http" {
		go func() {
			_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(message) }))
		}()
		return listener.Addr().String(), nil
	}
	converse := map[string]func(net.Conn){"64 B": echo, "redis": serveRedis}[w.protocol]
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				converse(conn)
			}()
		}
	}()
	return listener.Addr().String(), nil
}

// echo answers each message with itself.
func echo(conn net.Conn) {
	b := make([]byte, messageLen)
	for {
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}

// serveRedis answers each command of Redis's protocol with the same value.
func serveRedis(conn net.Conn) {
	r, w := bufio.NewReader(conn), bufio.NewWriter(conn)
	for {
		words, err := redisNumber(r, '*')
		for ; words > 0 && err == nil; words-- {
			_, err = redisString(r)
		}
		if err != nil {
			return
		}
		w.WriteString("$" + strconv.Itoa(messageLen) + "\r\n")
		w.Write(message)
		w.WriteString("\r\n")
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
	}
}

// redisNumber reads a line with a number that follows the prefix.
func redisNumber(r *bufio.Reader, prefix byte) (int, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != prefix {
		return 0, errAnswer
	}
	return strconv.Atoi(string(bytes.TrimSpace(line[1:])))
}

// redisString reads a string, and returns it until the next read.
func redisString(r *bufio.Reader) ([]byte, error) {
	n, err := redisNumber(r, '$')
	if err != nil {
		return nil, err
	}
	b, err := r.Peek(n + len("\r\n"))
	if err != nil {
		return nil, err
	}
	_, err = r.Discard(len(b))
	return b[:n], err
}

// newClient connects a client.
func newClient(ctx context.Context, w way, address string, dial func(context.Context) (net.Conn, error), config *rdmacm.Config) (client, error) {
	if strings.HasPrefix(w.network, "rdmacm") {
		conn, err := rdmacm.Dial(ctx, address, config)
		return messageClient{conn}, err
	}
	if w.protocol == "http" {
		return &httpClient{
			url: "http://" + address,
			transport: http.Transport{
				DisableCompression: true,
				DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			},
		}, nil
	}
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	if w.protocol == "redis" {
		return &redisClient{conn, bufio.NewReader(conn)}, nil
	}
	return &streamClient{conn, make([]byte, messageLen)}, nil
}

// messageClient sends messages.
type messageClient struct{ *rdmacm.Conn }

func (c messageClient) ask() error {
	ctx := context.Background()
	if err := c.Send(ctx, ibverbs.InlineBytes(message)); err != nil {
		return err
	}
	m, err := c.Receive(ctx)
	if err == nil && !bytes.Equal(m.Data, message) {
		err = errAnswer
	}
	return err
}

// streamClient sends as many bytes as it gets.
type streamClient struct {
	net.Conn
	answer []byte
}

func (c *streamClient) ask() error {
	if _, err := c.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(c.Conn, c.answer)
	if err == nil && !bytes.Equal(c.answer, message) {
		err = errAnswer
	}
	return err
}

// redisClient asks for a value.
type redisClient struct {
	net.Conn
	r *bufio.Reader
}

var redisRequest = []byte("*2\r\n$3\r\nGET\r\n$8\r\nkey:1234\r\n")

func (c *redisClient) ask() error {
	if _, err := c.Write(redisRequest); err != nil {
		return err
	}
	answer, err := redisString(c.r)
	if err == nil && !bytes.Equal(answer, message) {
		err = errAnswer
	}
	return err
}

// httpClient gets a page over a connection of its own.
type httpClient struct {
	url       string
	transport http.Transport
}

func (c *httpClient) ask() error {
	request, err := http.NewRequest(http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && !bytes.Equal(answer, message) {
		err = errAnswer
	}
	return err
}

func (c *httpClient) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// clients is a program whose arguments are a network, a protocol, an address of
// the device, how many clients to connect, and how many requests they make
// together. It starts a clientServer, and prints what it has measured.
func clients(args []string, stdout, stderr io.Writer) int {
	n, _ := strconv.Atoi(args[3])
	requests, _ := strconv.Atoi(args[4])
	got, err := converseAll(way{args[0], args[1]}, args[2], n, requests)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(got)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// converseAll connects n clients to a process that serves them, and has them
// ask.
func converseAll(w way, host string, n, requests int) (got conversing, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		return got, err
	}
	server := exec.CommandContext(ctx, program, w.network, w.protocol, host)
	server.Env = process.Env("clientserver")
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		return got, err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return got, err
	}
	if err := server.Start(); err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, in.Close(), server.Wait()) }()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return got, cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
	}
	address := lines.Text()
	clients, err := connectClients(ctx, w, address, n)
	if err != nil {
		return got, err
	}
	both := func() (time.Duration, error) {
		if _, err := io.WriteString(in, "\n"); err != nil {
			return 0, err
		}
		if !lines.Scan() {
			return 0, cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
		}
		used, err := strconv.ParseInt(lines.Text(), 10, 64)
		return time.Duration(used) + cpuTime(), err
	}
	before, err := both()
	if err != nil {
		return got, err
	}
	if got, err = askAll(clients, requests); err != nil {
		return got, err
	}
	after, err := both()
	got.CPU = micros(after-before) / float64(requests)
	return got, err
}

// connectClients connects n clients, a few at a time. Each has made a request.
func connectClients(ctx context.Context, w way, address string, n int) ([]client, error) {
	config := messageConfig(w.network)
	dialer := rsocket.Dialer{Config: streamConfig(w.network)}
	dial := func(ctx context.Context) (net.Conn, error) {
		if w.network == "tcp" {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
		return dialer.DialContext(ctx, "rdma", address)
	}
	clients := make([]client, n)
	return clients, eachOf(n, 16, func(i int) (err error) {
		if clients[i], err = newClient(ctx, w, address, dial, config); err != nil {
			return err
		}
		return clients[i].ask()
	})
}

// askAll has the clients make so many requests together, and closes them.
func askAll(clients []client, requests int) (conversing, error) {
	n := len(clients)
	times := make([][]time.Duration, n)
	for i := range times {
		times[i] = make([]time.Duration, 0, 4*requests/n)
	}
	var made atomic.Int64
	began := time.Now()
	err := eachOf(n, n, func(i int) error {
		for made.Add(1) <= int64(requests) {
			began := time.Now()
			if err := clients[i].ask(); err != nil {
				return err
			}
			times[i] = append(times[i], time.Since(began))
		}
		return nil
	})
	took := time.Since(began)
	err = errors.Join(err, eachOf(n, 16, func(i int) error { return clients[i].Close() }))
	fewest := requests
	for _, of := range times {
		fewest = min(fewest, len(of))
	}
	all := slices.Concat(times...)
	slices.Sort(all)
	if len(all) == 0 {
		return conversing{}, err
	}
	return conversing{
		Rate:   float64(requests) / took.Seconds(),
		Median: micros(all[len(all)/2]), P99: micros(all[len(all)*99/100]),
		Slowest: float64(fewest) * float64(n) / float64(requests),
	}, err
}

// eachOf calls f with each number below n, so many at a time.
func eachOf(n, atOnce int, f func(i int) error) error {
	var next atomic.Int64
	var running sync.WaitGroup
	errs := make([]error, n)
	for range min(n, atOnce) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = f(i)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}
