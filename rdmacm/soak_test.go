// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// soakWorkers is the number of workers that dial at the same time.
const soakWorkers = 6

// soakPatience bounds every step of a soak.
const soakPatience = time.Minute

// slotSize is the part of the server's memory that each worker has for itself.
const slotSize = 64 << 10

// soak is a server with all deeds of its clients. The clients are in the same
// process, or in another one on a lossy way. Some clients and servers are in
// other processes, which get killed.
type soak struct {
	ctx      context.Context // ends when something has failed
	fail     context.CancelCauseFunc
	address  string // of the server
	host     string // of the clients
	unserved string // an address without a listener
	seed     uint64

	ln     *rdmacm.Listener // of the server, as is what follows
	pd     *ibverbs.PD
	memory *ibverbs.MR // a slot for each worker
	server sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// check ends the soak with the first error.
func (s *soak) check(what string, err error) {
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", what, err))
	}
}

// deed is what a worker does with one connection, or instead of one.
type deed struct {
	name   string
	weight int // how often, beside others
	do     func(s *soak, w *worker) error
}

// worker does one deed after the other. Its deeds depend only on the seed, not
// on how long anything takes.
type worker struct {
	*rand.Rand
	n, deeds int
	ctx      context.Context // of the deed under way
}

func (s *soak) work(n int, end time.Time) {
	w := &worker{Rand: rand.New(rand.NewPCG(s.seed, uint64(n))), n: n}
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	for ; time.Now().Before(end) && s.ctx.Err() == nil; w.deeds++ {
		pick, i := w.IntN(total), 0
		for ; pick >= deeds[i].weight; i++ {
			pick -= deeds[i].weight
		}
		var cancel context.CancelFunc
		w.ctx, cancel = context.WithTimeout(s.ctx, soakPatience)
		s.check(fmt.Sprintf("worker %d, deed %d, %s", n, w.deeds, deeds[i].name), deeds[i].do(s, w))
		cancel()
		s.count(deeds[i].name)
	}
}

// setting returns the value of an environment variable.
func setting[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	require.NoError(t, err, name)
	return value
}

// run lets all workers do their deeds for some time and returns the first
// error.
func (s *soak) run(long time.Duration) error {
	end := time.Now().Add(long)
	var workers sync.WaitGroup
	for n := range soakWorkers {
		workers.Go(func() { s.work(n, end) })
	}
	workers.Wait()
	return context.Cause(s.ctx)
}

// report returns how often each deed was done.
func (s *soak) report() string {
	var lines []string
	for _, name := range slices.SortedFunc(maps.Keys(s.counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.counts[b], s.counts[a]), strings.Compare(a, b))
	}) {
		lines = append(lines, fmt.Sprintf("%6d %s", s.counts[name], name))
	}
	return strings.Join(lines, "\n")
}

// soakSettings returns how long a soak takes and the seed of its lots.
func soakSettings(t *testing.T) (long time.Duration, seed uint64) {
	t.Helper()
	long = setting(t, "VERBENA_SOAK", time.Minute, time.ParseDuration)
	seed = setting(t, "VERBENA_SOAK_SEED", uint64(time.Now().UnixNano()), func(s string) (uint64, error) {
		return strconv.ParseUint(s, 10, 64)
	})
	t.Logf("VERBENA_SOAK=%v VERBENA_SOAK_SEED=%d", long, seed)
	return long, seed
}

// newSoak starts a server at an address of a device.
func newSoak(t *testing.T, device string, host netip.Addr, seed uint64) *soak {
	t.Helper()
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	i := slices.IndexFunc(devices, func(c *ibverbs.Device) bool { return c.Name() == device })
	pd, err := devices[i].AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	memory, err := pd.Alloc(soakWorkers*slotSize, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	ln := listenOn(t, host)
	s := &soak{
		address: ln.Addr().String(), host: host.String(), unserved: host.String() + ":7", seed: seed,
		ln: ln, pd: pd, memory: memory, counts: map[string]int{},
	}
	s.ctx, s.fail = context.WithCancelCause(t.Context())
	s.server.Go(s.serve)
	return s
}

// stop ends the server. It fails the test if anything has failed.
func (s *soak) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.ln.Close())
	s.server.Wait()
	require.NoError(t, context.Cause(s.ctx), "VERBENA_SOAK_SEED=%d", s.seed)
}

// Connections are made, used by one and by many goroutines, refused, canceled,
// attacked, closed and killed at random. VERBENA_SOAK says for how long, and
// VERBENA_SOAK_SEED sets the seed. No byte is lost, nothing is left, and
// nothing hangs. All the time a request is under way to a host that never
// answers.
func TestSoak(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	long, seed := soakSettings(t)
	unanswered := askNobody(t, d)
	s := newSoak(t, d.Name, d.IPv4, seed)
	if s.run(long) == nil {
		unanswered()
	}
	s.stop(t)
	t.Log("\n" + s.report())
}

// maxMessage is the longest message of a soak. It is one packet where longer
// messages crash the kernel.
var maxMessage = func() int {
	if testdevice.RepeatsPackets() {
		return 1 << 10
	}
	return 8 << 10
}()

var deeds = []deed{
	{"exchange messages", 20, (*soak).exchange},
	{"write and read the server's memory", 10, (*soak).writeAndRead},
	{"be hung up on", 10, (*soak).beHungUpOn},
	{"be refused", 10, (*soak).beRefused},
	{"find no listener", 5, (*soak).findNoListener},
	{"cancel dialing", 20, (*soak).cancelDialing},
	{"be given up", 10, (*soak).beGivenUp},
	{"close while busy", 10, (*soak).closeWhileBusy},
	{"crowd a connection", 10, (*soak).crowd},
	{"attack", 10, (*soak).attack},
	{"close the listener", 5, (*soak).closeListener},
	{"kill a server", 1, (*soak).killServer},
	{"kill a client", 1, (*soak).killClient},
}

// dial connects to the server with an order.
func (s *soak) dial(ctx context.Context, w *worker, do verb, number uint32) (*rdmacm.Conn, *ibverbs.MR, error) {
	var mr *ibverbs.MR
	o := order{do, uint8(w.n), number}
	conn, err := rdmacm.Dial(ctx, s.address, inPool(&rdmacm.Config{PrivateData: o.bytes(), Setup: func(c *rdmacm.Conn) (err error) {
		mr, err = c.Alloc(2*maxMessage, ibverbs.AccessLocalWrite)
		return err
	}}))

	return conn, mr, err
}

// exchange sends random messages and compares the echoes.
func (s *soak) exchange(w *worker) error {
	messages := w.IntN(20)
	conn, mr, err := s.dial(w.ctx, w, echo, 0)
	if err != nil {
		return err
	}
	for range messages {
		if err := w.message(conn, mr); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	return conn.Close()
}

// message sends a message and waits for its echo.
func (w *worker) message(conn *rdmacm.Conn, mr *ibverbs.MR) error {
	n := w.IntN(maxMessage + 1)
	w.fill(mr.Bytes()[:n])
	pending, err := conn.PostRecv(mr.Sub(maxMessage, maxMessage))
	if err != nil {
		return err
	}
	if err := conn.Send(w.ctx, mr.Sub(0, n)); err != nil {
		return err
	}
	got, err := pending.Wait(w.ctx)
	if err != nil {
		return err
	}
	if !bytes.Equal(mr.Bytes()[:n], mr.Bytes()[maxMessage:maxMessage+got]) {
		return fmt.Errorf("sent %d bytes, and got other %d back", n, got)
	}
	return nil
}

func (w *worker) fill(b []byte) {
	x := w.Uint64()
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}

// writeAndRead writes to the worker's slot, reads it, and compares.
func (s *soak) writeAndRead(w *worker) error {
	n, at := w.IntN(maxMessage)+1, w.IntN(slotSize-maxMessage)
	conn, mr, err := s.dial(w.ctx, w, echo, 0)
	if err != nil {
		return err
	}
	w.fill(mr.Bytes()[:n])
	remote := parseOffer(conn.PeerData())
	remote.Addr, remote.Len = remote.Addr+uint64(at), uint64(n)
	err = conn.Write(w.ctx, remote, mr.Sub(0, n))
	if err == nil {
		err = conn.Read(w.ctx, mr.Sub(maxMessage, n), remote)
	}
	if err == nil && !bytes.Equal(mr.Bytes()[:n], mr.Bytes()[maxMessage:maxMessage+n]) {
		err = fmt.Errorf("%d bytes at %d are not what was written", n, at)
	}
	return errors.Join(err, conn.Close())
}

// beHungUpOn exchanges as many messages as the server wants to.
func (s *soak) beHungUpOn(w *worker) error {
	messages := w.IntN(5)
	conn, mr, err := s.dial(w.ctx, w, hangUp, uint32(messages))
	if err != nil {
		return err
	}
	for i := range messages {
		if err := w.message(conn, mr); err != nil && !(i == messages-1 && isGone(err)) {
			return errors.Join(err, conn.Close())
		}
	}
	select {
	case <-conn.Done():
	case <-w.ctx.Done():
		err = context.Cause(w.ctx)
	}
	return errors.Join(err, conn.Close())
}

func (s *soak) beRefused(w *worker) error {
	number := w.Uint32()
	conn, _, err := s.dial(w.ctx, w, turnAway, number)
	rejected, ok := errors.AsType[*rdmacm.RejectedError](err)
	if !ok {
		return fmt.Errorf("not refused, but %v, %w", conn, err)
	}
	want := padded(order{turnAway, uint8(w.n), number}.bytes(), maxRejectData)
	if rejected.Reason != rdmacm.ReasonConsumer || !bytes.Equal(want, rejected.PrivateData) {
		return fmt.Errorf("refused with %d and %q", rejected.Reason, rejected.PrivateData)
	}
	return nil
}

func (s *soak) findNoListener(w *worker) error {
	_, err := rdmacm.Dial(w.ctx, s.unserved, inPool(nil))
	if rejected, ok := errors.AsType[*rdmacm.RejectedError](err); !ok || rejected.Reason != rdmacm.ReasonNoListener {
		return fmt.Errorf("not rejected, but: %w", err)
	}
	return nil
}

func (s *soak) cancelDialing(w *worker) error {
	ctx, cancel := context.WithTimeout(w.ctx, time.Duration(w.IntN(200000))*time.Microsecond)
	defer cancel()
	conn, _, err := s.dial(ctx, w, expectAny, 0)
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.count("- dialing canceled")
		return nil
	}
	return err
}

// beGivenUp dials while the server gives up. That may be before, while or after
// the connection is up here.
func (s *soak) beGivenUp(w *worker) error {
	conn, _, err := s.dial(w.ctx, w, giveUp, uint32(w.IntN(100000)))
	var closed error
	if err == nil {
		err = conn.Wait(w.ctx)
		closed = conn.Close()
	}
	failed, ok := errors.AsType[*rdmacm.EventError](err)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || ok && failed.Type == rdmacm.EventConnectError {
		err = nil
	}
	return errors.Join(err, closed)
}

// closeWhileBusy closes a connection while other goroutines receive and send on
// it.
func (s *soak) closeWhileBusy(w *worker) error {
	after := time.Duration(w.IntN(50000)) * time.Microsecond
	conn, mr, err := s.dial(w.ctx, w, expectAny, 0)
	if err != nil {
		return err
	}
	var busy sync.WaitGroup
	results := make(chan error, 4)
	for range cap(results) / 2 {
		busy.Go(func() { _, err := conn.Recv(w.ctx, mr.Sub(maxMessage, maxMessage)); results <- err })
		busy.Go(func() {
			var err error
			for err == nil {
				err = conn.Send(w.ctx, mr.Sub(0, 64))
			}
			results <- err
		})
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-conn.Done(): // the echo has met no receive, or has ended
	}
	cause := conn.Err()
	err = conn.Close()
	busy.Wait()
	close(results)
	for result := range results {
		if result != nil && cause == nil && !errors.Is(result, os.ErrClosed) {
			err = errors.Join(err, result)
		}
	}
	return err
}

// closeListener closes a listener that has requests or is about to have some.
func (s *soak) closeListener(w *worker) error {
	waits := w.IntN(2) == 0
	ln, err := rdmacm.Listen(w.ctx, s.host+":0", nil)
	if err != nil {
		return err
	}
	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(w.ctx, ln.Addr().String(), inPool(nil))
		dialed <- err
	}()
	for waits && rdmacm.Waiting(ln) == 0 && w.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	err = ln.Close()
	if result := <-dialed; !errors.Is(result, syscall.ECONNREFUSED) {
		err = errors.Join(err, fmt.Errorf("not refused: %w", result))
	}
	return err
}

// crowdSize is the number of goroutines that share a connection.
const crowdSize = 12

// crowd lets goroutines share a connection whose send queue is too small for
// them. Each goroutine writes to its own piece of memory and reads it back. In
// between it posts requests that are refused.
func (s *soak) crowd(w *worker) error {
	queue, rounds, seed := w.IntN(4)+1, w.IntN(20)+1, w.Uint32()
	var mr *ibverbs.MR
	o := order{echo, uint8(w.n), 0}
	conn, err := rdmacm.Dial(w.ctx, s.address, inPool(&rdmacm.Config{
		SendQueue: queue, PrivateData: o.bytes(),
		Setup: func(c *rdmacm.Conn) (err error) {
			mr, err = c.Alloc(crowdSize*3*crowdPiece, ibverbs.AccessLocalWrite)
			return err
		},
	}))
	if err != nil {
		return err
	}
	remote := parseOffer(conn.PeerData())
	errs := together(crowdSize, func(i int) error {
		mine := mr.Sub(i*3*crowdPiece, 3*crowdPiece)
		there := remote.Sub(uint64(i*crowdPiece), crowdPiece)
		for round := range rounds {
			if err := shareOf(w.ctx, conn, mine, there, uint32(i*rounds+round)^seed); err != nil {
				return fmt.Errorf("goroutine %d, queue of %d: %w", i, queue, err)
			}
		}
		return nil
	})
	return errors.Join(append(errs, conn.Close())...)
}

// crowdPiece is the number of bytes that a goroutine writes.
const crowdPiece = 256

// shareOf writes, posts a request that is refused, and reads back.
func shareOf(ctx context.Context, conn *rdmacm.Conn, mine ibverbs.Segment, there ibverbs.RemoteBuffer, number uint32) error {
	out, back, result := mine.Sub(0, crowdPiece), mine.Sub(crowdPiece, crowdPiece), mine.Sub(2*crowdPiece, 8)
	for i := range out.Bytes() {
		out.Bytes()[i] = byte(number >> (i % 4 * 8))
	}
	if err := conn.Write(ctx, there, out); err != nil {
		return err
	}
	if err := refused(ctx, conn, result); !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("not refused: %w", err)
	}
	if err := conn.Read(ctx, back, there); err != nil {
		return err
	}
	if !bytes.Equal(out.Bytes(), back.Bytes()) {
		return errors.New("read other bytes than were written")
	}
	return nil
}

// attacks are what a hostile client does on a connection to an echo.
var attacks = []func(s *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error{
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error { // a wrong key
		there.RKey ^= 1 << w.IntN(32)
		return wantFailure(conn.Write(w.ctx, there, mr.Sub(0, 8)))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error { // a wrong address
		there.Addr += 1 << (40 + w.IntN(20))
		return wantFailure(conn.Read(w.ctx, mr.Sub(0, 8), there))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, _ ibverbs.RemoteBuffer) error { // longer than the receive
		return wantFailure(conn.Send(w.ctx, mr.Sub(0, maxMessage+1+w.IntN(maxMessage))))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error { // longer than any peer expects
		n := w.IntN(2 * maxMessage)
		return conn.WriteImm(w.ctx, there, w.Uint32(), mr.Sub(0, n))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, _ ibverbs.RemoteBuffer) error { // more messages than receives
		ctx, cancel := context.WithTimeout(w.ctx, time.Duration(w.IntN(20000))*time.Microsecond)
		defer cancel()
		var all sync.WaitGroup
		for range w.IntN(30) {
			all.Go(func() { _ = conn.Send(ctx, mr.Sub(0, 64)) })
		}
		all.Wait()
		return nil
	},
}

// wantFailure returns nil if a transfer failed as one that the peer does not
// allow. The peer's queue pair fails then, and the peer may have hung up first.
func wantFailure(err error) error {
	if isGone(err) {
		return nil
	}
	return fmt.Errorf("an attack has succeeded, or failed otherwise: %w", err)
}

// attack does what an honest client does not.
func (s *soak) attack(w *worker) error {
	conn, mr, err := s.dial(w.ctx, w, expectAny, 0)
	if err != nil {
		return err
	}
	err = attacks[w.IntN(len(attacks))](s, w, conn, mr, parseOffer(conn.PeerData()))
	return errors.Join(err, conn.Close())
}

// dialVictim exchanges messages until it is killed.
func dialVictim(ctx context.Context, address string) error {
	var mr *ibverbs.MR
	conn, err := rdmacm.Dial(ctx, address, inPool(&rdmacm.Config{
		PrivateData: order{Do: expectAny}.bytes(),
		Setup: func(c *rdmacm.Conn) (err error) {
			mr, err = c.Alloc(2*maxMessage, ibverbs.AccessLocalWrite)
			return err
		},
	}))
	if err != nil {
		return err
	}
	fmt.Println("connected")
	for {
		pending, err := conn.PostRecv(mr.Sub(maxMessage, maxMessage))
		if err != nil {
			return err
		}
		if err := conn.Send(ctx, mr.Sub(0, maxMessage)); err != nil {
			return err
		}
		if _, err := pending.Wait(ctx); err != nil {
			return err
		}
	}
}

// startVictim runs this program as a victim and returns its output.
func startVictim(args ...string) (*exec.Cmd, *bufio.Scanner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Env = process.Env("victim")
	cmd.Stderr = io.Discard // what it says when its peer goes first
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return cmd, bufio.NewScanner(stdout), cmd.Start()
}

// kill ends a victim at a random time after its start.
func (w *worker) kill(cmd *exec.Cmd) error {
	time.Sleep(time.Duration(w.IntN(20000)) * time.Microsecond)
	err := cmd.Process.Kill()
	_ = cmd.Wait() // says that it was killed
	return err
}

// killServer connects to another process, which is then killed.
func (s *soak) killServer(w *worker) error {
	cmd, lines, err := startVictim(s.host + ":0")
	if err != nil {
		return err
	}
	if !lines.Scan() {
		return errors.Join(errors.New("the victim does not listen"), lines.Err(), w.kill(cmd))
	}
	conn, err := rdmacm.Dial(w.ctx, lines.Text(), inPool(nil))
	if err != nil {
		return errors.Join(err, w.kill(cmd))
	}
	if err := conn.Send(w.ctx); err != nil {
		return errors.Join(err, w.kill(cmd), conn.Close())
	}
	err = w.kill(cmd)
	select {
	case <-conn.Done():
	case <-w.ctx.Done():
		err = errors.Join(err, fmt.Errorf("the connection did not end: %w", context.Cause(w.ctx)))
	}
	return errors.Join(err, conn.Close())
}

// killClient kills another process that has connected to the server.
func (s *soak) killClient(w *worker) error {
	cmd, lines, err := startVictim("dial", s.address)
	if err != nil {
		return err
	}
	if !lines.Scan() {
		return errors.Join(errors.New("the victim does not connect"), lines.Err(), w.kill(cmd))
	}
	return w.kill(cmd)
}

// soakOrder tells the other host what to do.
type soakOrder struct {
	Address, Host, Unserved string
	Seed                    uint64
	Long                    time.Duration
}

// soakClients runs on the other host, with a soakOrder in JSON.
func soakClients(args []string) error {
	var o soakOrder
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return err
	}
	s := &soak{address: o.Address, host: o.Host, unserved: o.Unserved, seed: o.Seed, counts: map[string]int{}}
	s.ctx, s.fail = context.WithCancelCause(context.Background())
	err := s.run(o.Long)
	fmt.Println(s.report())
	return err
}

// The soak goes on between two hosts whose network loses packets.
func TestSoakWithLoss(t *testing.T) {
	needTwoHosts(t)
	d := testdevice.Device{Name: "rxe2", IPv4: netip.MustParseAddr("198.51.100.1")}
	// librdmacm keeps what it opens for this listener.
	require.NoError(t, listenOn(t, d.IPv4).Close())
	noKernelLeaks(t, d)
	long, seed := soakSettings(t)
	lose(t, 1)
	defer lose(t, 0)
	s := newSoak(t, d.Name, d.IPv4, seed)
	order, err := json.Marshal(soakOrder{s.address, "198.51.100.2", s.unserved, seed, long})
	require.NoError(t, err)
	out, err := peerCommand(t, "soak", string(order)).CombinedOutput()
	t.Logf("\n%s", out)
	require.NoError(t, err, "VERBENA_SOAK_SEED=%d", seed)
	s.stop(t)
}

// order is what a client wants of the server. The request's private data
// carries it. Only the client draws lots.
type order struct {
	Do     verb
	Worker uint8
	Number uint32 // what do needs to know
}

type verb uint8

const (
	echo      verb = iota // messages, until the client is gone
	hangUp                // after Number messages
	turnAway              // with the order as private data
	giveUp                // accepting, after Number microseconds
	expectAny             // the client may be gone at any time
)

func (o order) bytes() []byte {
	b, err := binary.Append(nil, binary.BigEndian, o)
	if err != nil {
		panic(err) // it has a size
	}
	return b
}

func parseOrder(b []byte) (o order, err error) {
	_, err = binary.Decode(b, binary.BigEndian, &o)
	return o, err
}

// serve takes requests until the listener is closed.
func (s *soak) serve() {
	for {
		req, err := s.ln.Accept(s.ctx)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				s.check("accept", err)
			}
			return
		}
		s.server.Go(func() {
			o, err := parseOrder(req.PrivateData())
			s.check("order", err)
			ctx, cancel := context.WithTimeout(s.ctx, 2*soakPatience)
			defer cancel()
			s.check(fmt.Sprintf("server, order %+v", o), s.obey(ctx, req, o))
		})
	}
}

// obey does what an order says. It returns an error if that fails.
func (s *soak) obey(ctx context.Context, req *rdmacm.Request, o order) error {
	switch o.Do {
	case turnAway:
		err := req.Reject(req.PrivateData()[:len(o.bytes())])
		return err
	case giveUp:
		short, cancel := context.WithTimeout(ctx, time.Duration(o.Number)*time.Microsecond)
		defer cancel()
		conn, err := req.Accept(short, inPool(nil))
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				s.count("- accepting given up")
				return nil
			}
			return err
		}
		return conn.Close()
	}
	var pending *rdmacm.Receive
	slot := s.memory.Sub(int(o.Worker)*slotSize, slotSize)
	offer := s.memory.Remote()
	offer.Addr += uint64(o.Worker) * slotSize
	var mr *ibverbs.MR
	conn, err := req.Accept(ctx, inPool(&rdmacm.Config{PD: s.pd, PrivateData: offerBytes(offer, slot.Len()), Setup: func(c *rdmacm.Conn) (err error) {
		if mr, err = c.Alloc(2*maxMessage, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		pending, err = c.PostRecv(mr.Sub(0, maxMessage))
		return err
	}}))
	if err != nil {
		// A client that closes at once may be gone before the server has got
		// its last message of the handshake.
		if o.Do == expectAny || o.Do == echo && errors.Is(err, syscall.ECONNRESET) {
			s.count("- dialer gone before the connection was up")
			return nil
		}
		return err
	}
	left := -1
	if o.Do == hangUp {
		left = int(o.Number)
	}
	err = echoMessages(ctx, conn, mr, pending, left)
	if o.Do == expectAny || isGone(err) {
		err = nil
	}
	return errors.Join(err, conn.Close())
}

// isGone reports whether an error is that of transfers to a peer that has
// closed. Soft-RoCE acknowledges a message after the program has seen it. So a
// peer that has closed may not have acknowledged its last message.
func isGone(err error) bool {
	_, failed := errors.AsType[*ibverbs.WCError](err)
	return failed || errors.Is(err, syscall.ECONNRESET)
}

// echoMessages sends back what it receives until the peer is gone, or until it
// has sent back left messages.
func echoMessages(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR, pending *rdmacm.Receive, left int) error {
	for ; left != 0; left-- {
		n, err := pending.Wait(ctx)
		if err != nil {
			return err
		}
		copy(mr.Bytes()[maxMessage:], mr.Bytes()[:n])
		if pending, err = conn.PostRecv(mr.Sub(0, maxMessage)); err != nil {
			return err
		}
		if err := conn.Send(ctx, mr.Sub(maxMessage, n)); err != nil {
			return err
		}
	}
	return nil
}

func offerBytes(r ibverbs.RemoteBuffer, size int) []byte {
	b := binary.BigEndian.AppendUint64(nil, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(size))
}

func parseOffer(b []byte) ibverbs.RemoteBuffer {
	return ibverbs.RemoteBuffer{
		Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), Len: uint64(binary.BigEndian.Uint32(b[12:])),
	}
}
